//! What one command consists of, so that all of it can be ended.

use std::{fs, io};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cgroup::ControlGroup;

/// How often one looks for descendants that were born while the others were stopped.
const ROUNDS: usize = 100;

/// What one command consists of.
#[derive(Debug)]
pub(super) enum Bounds {
    /// All that is in its control group.
    Group(ControlGroup),
    /// Its shell and all that descends from it: where nobody may make groups. The shell is the one that inherits orphans,
    /// so nothing leaves it while it lives.
    Descendants(Pid),
}

impl Bounds {
    /// Ends all of it.
    ///
    /// # Errors
    /// The system refused.
    pub(super) fn kill(&self) -> io::Result<()> {
        match self {
            Self::Group(group) => group.kill(),
            Self::Descendants(shell) => {
                kill_descendants(*shell);
                Ok(())
            }
        }
    }

    /// Removes what is left of it for the machine. `false` while processes live inside.
    pub(super) fn remove(&self) -> bool {
        match self {
            Self::Group(group) => group.remove(),
            Self::Descendants(_) => true,
        }
    }
}

/// First all of them are stopped, for who runs can be followed by another; then they are ended.
fn kill_descendants(shell: Pid) {
    let mut held = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let fresh: Vec<Pid> = family(shell).into_iter().filter(|pid| !seen.contains(pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            seen.push(pid);
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                let _ = pidfd_send_signal(&pidfd, Signal::STOP);
                held.push(pidfd);
            }
        }
    }
    for pidfd in held {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

/// A process and all that descends from it, as far as it is listed now.
fn family(first: Pid) -> Vec<Pid> {
    let mut all = vec![first];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let tasks =
            fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
        let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let children: Vec<Pid> = lists
            .flat_map(|list| {
                list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
            })
            .filter_map(Pid::from_raw)
            .filter(|child| !all.contains(child))
            .collect();
        all.extend(children);
        next += 1;
    }
    all
}
