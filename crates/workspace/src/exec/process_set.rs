//! The set of processes of one command, so that all of them can be killed.

use std::{fs, io};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::cgroup::ControlGroup;

/// How often new descendants are looked for while the known ones are being stopped.
const MAX_SCANS: usize = 100;

#[derive(Debug)]
pub(super) enum ProcessSet {
    /// All processes in the control group.
    Group(ControlGroup),
    /// The shell and its descendants, where control groups cannot be created. The shell is a subreaper, so descendants
    /// cannot leave its tree while it lives.
    Descendants(Pid),
}

impl ProcessSet {
    /// Kills all processes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn kill(&self) -> io::Result<()> {
        match self {
            Self::Group(group) => group.kill(),
            Self::Descendants(shell) => {
                kill_tree(*shell, |_| true);
                Ok(())
            }
        }
    }

    /// Removes the control group. Returns `false` while processes live in it.
    pub(super) fn remove(&self) -> bool {
        match self {
            Self::Group(group) => group.remove(),
            Self::Descendants(_) => true,
        }
    }
}

/// Kills everything that this process has started, also indirectly. It must be a subreaper, so that no descendant has
/// left its tree.
pub fn kill_descendants() {
    let own = getpid();
    kill_tree(own, |pid| pid != own);
}

/// Stops all processes before killing them: a running process could fork in the meantime.
fn kill_tree(first: Pid, meant: impl Fn(Pid) -> bool) {
    let mut stopped = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..MAX_SCANS {
        let mut unseen = process_tree(first);
        unseen.retain(|pid| meant(*pid) && !seen.contains(pid));
        if unseen.is_empty() {
            break;
        }
        for pid in unseen {
            seen.push(pid);
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                let _ = pidfd_send_signal(&pidfd, Signal::STOP);
                stopped.push(pidfd);
            }
        }
    }
    for pidfd in stopped {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

/// A process and its current descendants.
fn process_tree(first: Pid) -> Vec<Pid> {
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
