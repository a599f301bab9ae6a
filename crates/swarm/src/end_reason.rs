//! Why a VM ended, for calls that were in progress at that time.

use std::{fmt, io, time::Duration};

use futures_util::TryStreamExt;
use skep_api::swarm::EndReason;
use skep_channel::{Content, Guest};
use tokio::{sync::watch, time::timeout};

use crate::Error;

/// How long a failed call waits for the reason. It is known after the VM is removed and its end recorded.
const REASON_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a broken answer waits to learn whether the whole connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a VM ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmEnding {
    pub reason: EndReason,
    /// More about it, for callers.
    pub message: Option<String>,
}

impl fmt::Display for VmEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason.as_str())?;
        self.message.as_ref().map_or(Ok(()), |message| write!(f, " ({message})"))
    }
}

/// Receives the reason of a VM's end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EndReasonReceiver(watch::Receiver<Option<VmEnding>>);

impl EndReasonReceiver {
    pub(crate) fn channel() -> (watch::Sender<Option<VmEnding>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// The error of a call, with the reason if the VM ended.
    pub async fn explain(&self, error: skep_channel::Error) -> Error {
        match error {
            skep_channel::Error::Ended => Error::VmEnded(self.reason().await),
            other => other.into(),
        }
    }

    /// Passes a byte stream on. If it breaks off because the VM ended, the error names the reason.
    pub(crate) fn explain_content(self, guest: Guest, content: Content) -> Content {
        Box::pin(content.or_else(move |error| {
            let (ending, guest) = (self.clone(), guest.clone());
            async move {
                match timeout(CLOSE_TIMEOUT, guest.closed()).await {
                    Ok(()) => Err(io::Error::other(Error::VmEnded(ending.reason().await))),
                    Err(_) => Err(error),
                }
            }
        }))
    }

    /// Waits for the reason. `None` after a timeout.
    async fn reason(&self) -> Option<VmEnding> {
        let mut known = self.0.clone();
        let known = timeout(REASON_TIMEOUT, known.wait_for(Option::is_some)).await;
        known.ok().and_then(Result::ok).and_then(|ending| ending.clone())
    }
}
