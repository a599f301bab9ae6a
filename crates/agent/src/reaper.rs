//! Orphans: the first process inherits all whose parents ended, and must await them.

use std::{fs, time::Duration};

use rustix::process::{Pid, WaitOptions, waitpid};
use skep_workspace::Commands;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{Doing, Error};

/// How long a dead child waits. The answer of the command that just ended goes first.
const DELAY: Duration = Duration::from_millis(50);

/// Reaps orphans from now on.
pub(crate) fn start(commands: Commands) -> Result<(), Error> {
    let mut deaths = signal(SignalKind::child()).doing("listen for ended children")?;
    tokio::spawn(async move {
        while deaths.recv().await.is_some() {
            tokio::time::sleep(DELAY).await;
            reap(&commands);
        }
    });
    Ok(())
}

fn reap(commands: &Commands) {
    for child in children() {
        let Some(pid) =
            u32::try_from(child).ok().filter(|pid| !commands.owns(*pid)).and(Pid::from_raw(child))
        else {
            continue;
        };
        // One that lives on says nothing, and one that is gone is no error of ours.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// The first process has one thread, whose children are all of its children.
fn children() -> Vec<i32> {
    let list = fs::read_to_string("/proc/1/task/1/children").unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
