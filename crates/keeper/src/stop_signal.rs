//! The signals that stop the keeper.

use std::fs;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Error, service_manager};

/// What happens to the VMs when the keeper stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VmsAtStop {
    /// Committed VMs keep running and the next keeper takes them over. For SIGTERM, which a service manager sends.
    Keep,
    /// All VMs end. For SIGINT and SIGHUP, which come from a terminal.
    End,
}

pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    pub(crate) fn new() -> Result<Self, Error> {
        let on = |kind| signal(kind).map_err(Error::io("signals"));
        let status = fs::read_to_string("/proc/self/status").map_err(Error::io("/proc/self/status"))?;
        // Under `nohup` SIGHUP is ignored, and a handler would undo that.
        let hangup = if ignores_hangup(&status) { None } else { Some(on(SignalKind::hangup())?) };
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())?, hangup })
    }

    /// Waits for the next signal, and notifies the service manager of the shutdown. Cancel-safe.
    pub(crate) async fn received(&mut self) -> VmsAtStop {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let wish = tokio::select! {
            _ = self.terminate.recv() => VmsAtStop::Keep,
            _ = self.interrupt.recv() => VmsAtStop::End,
            _ = hangup => VmsAtStop::End,
        };
        service_manager::notify_stopping();
        wish
    }
}

/// Reads the mask of ignored signals, whose lowest bit is SIGHUP (proc_pid_status(5)).
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::ignores_hangup;

    #[test]
    fn nohup_is_detected() {
        assert!(ignores_hangup("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}
