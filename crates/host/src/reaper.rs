//! Reaps orphans, which this process inherits as init process or subreaper.

use std::{collections::BTreeSet, fs, io, time::Duration};

use rustix::process::{Pid, WaitOptions, waitpid};
use skep_workspace::Commands;
use tokio::signal::unix::{SignalKind, signal};

/// Starts the task that reaps orphans.
///
/// A child that other code waits for must be reaped by it within `delay`. A child that is dead for longer, and belongs
/// to no command, is an orphan.
///
/// # Errors
/// The handler of SIGCHLD cannot be installed.
pub fn reap_orphans(commands: Commands, delay: Duration) -> io::Result<()> {
    let mut sigchld = signal(SignalKind::child())?;
    tokio::spawn(async move {
        let mut dead = BTreeSet::new();
        loop {
            // Children that just died are checked again even if no other child dies.
            if dead.is_empty() && sigchld.recv().await.is_none() {
                return;
            }
            tokio::time::sleep(delay).await;
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path, process::Command};

    use rustix::process::{getpid, set_child_subreaper};
    use skep_workspace::Place;

    use super::*;

    #[tokio::test]
    async fn an_orphan_is_reaped_and_an_awaited_child_is_not() {
        const DELAY: Duration = Duration::from_millis(100);
        set_child_subreaper(Some(getpid())).unwrap();
        let place = Place::new("/", "/", BTreeMap::new(), "").without_groups();
        reap_orphans(place.commands().clone(), DELAY).unwrap();
        let shell = Command::new("sh").args(["-c", "sleep 0.1 > /dev/null & echo $!"]).output().unwrap();
        assert!(shell.status.success(), "its status was there to be read");
        let orphan = Path::new("/proc").join(String::from_utf8(shell.stdout).unwrap().trim());
        assert!(orphan.exists());
        let gone = async {
            while orphan.exists() {
                tokio::time::sleep(DELAY / 10).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    }
}
