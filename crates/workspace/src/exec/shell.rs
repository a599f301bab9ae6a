//! The shell of one command, as its parent sees it.

use std::{io, os::fd::OwnedFd, os::unix::process::ExitStatusExt, process::ExitStatus};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitpid,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A child of ours, until it is awaited.
#[derive(Debug)]
pub(crate) struct Shell {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
}

impl Shell {
    /// Takes on a child that nobody else awaits.
    pub(crate) fn adopt(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` keeps its one descriptor open for as long as the `AsyncFd` owns it.
        let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        Ok(Self { pid, pidfd })
    }

    /// Its process id as it is listed.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for its end, which is not yet taken note of: see [`Self::status`].
    pub(crate) async fn ended(&self) {
        let _ = self.pidfd.readable().await;
    }

    /// Ends it. That it has ended is no error.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
    }

    /// Sends a signal to its process group, which it leads. To be called before [`Self::status`]: until then the kernel gives
    /// its number to no other process.
    pub(crate) fn signal_group(&self, signal: Signal) {
        // Fails only where all of the group have ended.
        let _ = kill_process_group(self.pid, signal);
    }

    /// How it ended. Waits for that, so it is asked once it has.
    pub(crate) fn status(&self) -> io::Result<ExitStatus> {
        let ended = waitpid(Some(self.pid), WaitOptions::empty())?;
        let missing = || io::Error::other("the shell has no status");
        ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())).ok_or_else(missing)
    }
}
