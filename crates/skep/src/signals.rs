//! Signals that ask a verb to end.

use std::{io, pin::Pin, process::ExitCode};

use futures_util::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What shells add to the number of the signal that ended a command.
pub(crate) const SIGNALLED: u8 = 128;

/// Signals that end this process no more once they are listened to.
pub(crate) struct Signals([(SignalKind, Signal); 3]);

impl Signals {
    /// Begins to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        let listen = |kind| Ok::<_, io::Error>((kind, signal(kind)?));
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    /// Waits for one, and gives its exit code: see [`exit_code`].
    pub(crate) async fn next(&mut self) -> ExitCode {
        exit_code(self.recv().await)
    }

    /// Waits for one.
    pub(crate) async fn recv(&mut self) -> SignalKind {
        let Self(signals) = self;
        let waits = signals.iter_mut().map(|(kind, signal)| -> Pin<Box<dyn Future<Output = SignalKind>>> {
            Box::pin(async {
                // No signal comes any more where the runtime ends, and then nobody waits.
                signal.recv().await;
                *kind
            })
        });
        let (kind, ..) = select_all(waits).await;
        kind
    }
}

/// The exit code that a shell gives a process that this signal ended.
pub(crate) fn exit_code(kind: SignalKind) -> ExitCode {
    ExitCode::from(SIGNALLED + u8::try_from(kind.as_raw_value()).unwrap_or(0))
}
