//! Sends input and signals to a running command.

use bytes::Bytes;
use futures_util::stream;
use skep_api::exec_stream::{EndStdin, MAX_WRITE_BYTES, SignalCommand, SignalName, WriteStdin};

use super::{Error, Guest};

/// Sends input and signals to one command. Cheap to clone; dropping it does not affect the command.
///
/// Each chunk of input is a request, answered when the command's pipe has taken it. A command that does not read its
/// input therefore buffers at most one chunk in the guest and does not block the connection's window.
#[derive(Debug, Clone)]
pub struct ExecControl {
    guest: Guest,
    exec_id: String,
}

impl ExecControl {
    pub(super) fn new(guest: &Guest, exec_id: &str) -> Self {
        Self { guest: guest.clone(), exec_id: exec_id.to_owned() }
    }

    /// Writes to the standard input, and waits until the pipe has taken all bytes. Returns `false` if it accepts no
    /// more.
    ///
    /// # Errors
    /// The guest's error, a lost connection, or a timeout.
    pub async fn write_stdin(&self, mut bytes: Bytes) -> Result<bool, Error> {
        let operation = WriteStdin { exec_id: self.exec_id.clone() };
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(MAX_WRITE_BYTES));
            let content = Box::pin(stream::once(std::future::ready(Ok(piece))));
            let (state, _) = self.guest.call_without_permit(&operation, Some(content)).await?;
            if !state.open {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Closes the standard input after what was written.
    ///
    /// # Errors
    /// Those of [`Self::write_stdin`].
    pub async fn end_stdin(&self) -> Result<(), Error> {
        self.guest.call(&EndStdin { exec_id: self.exec_id.clone() }).await.map(drop)
    }

    /// Sends a signal to the process group of the command.
    ///
    /// # Errors
    /// Those of [`Self::write_stdin`].
    pub async fn signal(&self, signal: SignalName) -> Result<(), Error> {
        self.guest.call(&SignalCommand { exec_id: self.exec_id.clone(), signal }).await.map(drop)
    }
}
