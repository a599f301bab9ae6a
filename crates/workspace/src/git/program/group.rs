//! The process group of one git.

use std::{
    io,
    process::{Child, Command, ExitStatus},
    sync::Arc,
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{super::read_permits::ReadPermit, TERM_GRACE};
use crate::{Commands, Place, exec::shell::Shell};

/// The process group of a git. Dropping it ends the group, and after it the group's service.
pub(super) struct Group {
    pub(super) leader: Option<(Shell, Pid)>,
    /// The registry in which the leader is marked as a child whose exit status is awaited, so that it is not reaped
    /// elsewhere.
    children: Commands,
    service: Option<Box<Self>>,
    /// Released when the leader has ended.
    permit: Option<Arc<ReadPermit>>,
}

impl Group {
    /// Starts a git as a registered child, so that the orphan reaper does not collect its status first.
    pub(super) fn start(
        place: &Place,
        command: &mut Command,
        service: Option<Self>,
        permit: Option<Arc<ReadPermit>>,
    ) -> io::Result<(Self, Child)> {
        let commands = place.commands().clone();
        let (pid, child) =
            commands.spawn_owned(|| command.spawn().map(|child| (Pid::from_child(&child), child)))?;
        let leader = Some((commands.adopt(pid)?, pid));
        Ok((Self { leader, children: commands, service: service.map(Box::new), permit }, child))
    }

    pub(super) fn signal_group(&self, signal: Signal) {
        if let Some((_, pid)) = &self.leader {
            let _ = kill_process_group(*pid, signal);
        }
    }

    pub(super) async fn wait(mut self) -> Option<ExitStatus> {
        if let Some((leader, pid)) = &self.leader {
            leader.wait_until_ended().await;
            // Before the process id is released: processes that git left behind must not hold its locks.
            let _ = kill_process_group(*pid, Signal::KILL);
        }
        let (leader, _) = self.leader.take()?;
        let status = leader.reap().ok();
        self.children.disown(&leader);
        if let Some(service) = self.service.take() {
            // The service still processes what it received last. It ends by itself once its connection is closed.
            let _ = tokio::time::timeout(TERM_GRACE, Box::pin(service.wait())).await;
        }
        status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal_group(Signal::TERM);
        let Some((leader, pid)) = self.leader.take() else { return };
        let (commands, permit) = (self.children.clone(), self.permit.take());
        let end = async move {
            let _ = tokio::time::timeout(TERM_GRACE, leader.wait_until_ended()).await;
            let _ = kill_process_group(pid, Signal::KILL);
            leader.wait_until_ended().await;
            let _ = leader.reap();
            commands.disown(&leader);
            drop(permit);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(end)),
            Err(_) => {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}
