//! Reaps orphans, which the helper inherits as a subreaper.

use std::{collections::BTreeSet, fs, io, time::Duration};

use rustix::process::{Pid, WaitOptions, waitpid};
use skep_workspace::Commands;
use tokio::signal::unix::{SignalKind, signal};

/// A child that other code waits for is reaped within this time. A child that is dead for longer is an orphan.
const ORPHAN_DELAY: Duration = Duration::from_millis(250);

/// Starts the task that reaps orphans.
pub(crate) fn start(commands: Commands) -> io::Result<()> {
    let mut sigchld = signal(SignalKind::child())?;
    tokio::spawn(async move {
        let mut dead = BTreeSet::new();
        loop {
            // Children that just died are checked again even if no other child dies.
            if dead.is_empty() && sigchld.recv().await.is_none() {
                return;
            }
            tokio::time::sleep(ORPHAN_DELAY).await;
            let now = dead_children(&commands);
            now.intersection(&dead).for_each(|pid| reap(*pid));
            dead = now.difference(&dead).copied().collect();
        }
    });
    Ok(())
}

fn reap(pid: i32) {
    let _ = Pid::from_raw(pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
}

/// Dead children that do not belong to a command. Orphans become children of the process's first thread.
fn dead_children(commands: &Commands) -> BTreeSet<i32> {
    let own = std::process::id();
    let list = fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap_or_default();
    let children = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    children.filter(|pid: &i32| !commands.owns(pid.unsigned_abs()) && is_dead(*pid)).collect()
}

fn is_dead(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
}
