//! Reaps orphans, which the init process inherits.

use std::{fs, time::Duration};

use rustix::process::{Pid, WaitOptions, waitpid};
use skep_workspace::Commands;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{Error, StepContext};

/// The delay before a dead child is reaped, so that the answer of a command that just ended is sent first.
const DELAY: Duration = Duration::from_millis(50);

/// Starts the task that reaps orphans.
pub(crate) fn start(commands: Commands) -> Result<(), Error> {
    let mut sigchld = signal(SignalKind::child()).context("listen for ended children")?;
    tokio::spawn(async move {
        while sigchld.recv().await.is_some() {
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
        // A child that is alive or gone is not an error.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// The init process has a single thread, so the list of this thread contains all its children.
fn children() -> Vec<i32> {
    let list = fs::read_to_string("/proc/1/task/1/children").unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
