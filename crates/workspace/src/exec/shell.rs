//! The shell of one command, as its parent sees it.

use std::{io, os::fd::OwnedFd, os::unix::process::ExitStatusExt, process::ExitStatus};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitpid,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A child process that this process must reap.
#[derive(Debug)]
pub(crate) struct Shell {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
}

impl Shell {
    /// Takes over a child that nothing else waits for.
    pub(crate) fn adopt(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` keeps its one descriptor open for as long as the `AsyncFd` owns it.
        let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
        Ok(Self { pid, pidfd })
    }

    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until it has ended, without reaping it: see [`Self::reap`].
    pub(crate) async fn wait_until_ended(&self) {
        let _ = self.pidfd.readable().await;
    }

    /// Kills it. Does nothing if it has ended.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
    }

    /// Sends a signal to its process group. Must be called before [`Self::reap`]: until then the kernel cannot reuse
    /// the process id.
    pub(crate) fn signal_group(&self, signal: Signal) {
        // Fails only if all processes of the group have ended.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Reaps it and returns its exit status. Blocks until it has ended, so call it after [`Self::wait_until_ended`].
    pub(crate) fn reap(&self) -> io::Result<ExitStatus> {
        let ended = waitpid(Some(self.pid), WaitOptions::empty())?;
        let missing = || io::Error::other("the shell has no status");
        ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())).ok_or_else(missing)
    }
}
