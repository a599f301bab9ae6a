//! SIGINT, SIGTERM and SIGHUP, for verbs that end in an orderly way.

use std::{io, pin::Pin, process::ExitCode};

use futures_util::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Shells add this to the number of the signal that ended a command.
pub(crate) const SIGNAL_EXIT_BASE: u8 = 128;

/// The signal streams. The signals no longer end the process once it listens to them.
pub(crate) struct Signals([(SignalKind, Signal); 3]);

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let listen = |kind| Ok::<_, io::Error>((kind, signal(kind)?));
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    /// Waits for a signal and returns its exit code: see [`exit_code`].
    pub(crate) async fn next_exit_code(&mut self) -> ExitCode {
        exit_code(self.recv().await)
    }

    pub(crate) async fn recv(&mut self) -> SignalKind {
        let Self(signals) = self;
        let waits = signals.iter_mut().map(|(kind, signal)| -> Pin<Box<dyn Future<Output = SignalKind>>> {
            Box::pin(async {
                // `recv` returns `None` only when the runtime shuts down, and then this future is no longer polled.
                signal.recv().await;
                *kind
            })
        });
        let (kind, ..) = select_all(waits).await;
        kind
    }
}

/// The exit code that a shell reports for a process that this signal ended.
pub(crate) fn exit_code(kind: SignalKind) -> ExitCode {
    ExitCode::from(SIGNAL_EXIT_BASE + u8::try_from(kind.as_raw_value()).unwrap_or(0))
}
