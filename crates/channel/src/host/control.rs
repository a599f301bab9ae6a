//! Input and signals of a command that runs.

use bytes::Bytes;
use futures_util::stream;
use skep_api::exec_stream::{EndStdin, STDIN_PIECE_BYTES, SignalCommand, SignalName, WriteStdin};

use super::{Error, Guest};

/// Sends input and signals to one command. Cheap to clone; dropping it changes nothing for the command.
///
/// Each piece of input is a request of its own, which is answered once the command's pipe has taken it. So a command that does
/// not read its input holds at most one piece in the guest, and nothing of the window that all requests share.
#[derive(Debug, Clone)]
pub struct ExecControl {
    guest: Guest,
    exec_id: String,
}

impl ExecControl {
    pub(super) fn new(guest: &Guest, exec_id: &str) -> Self {
        Self { guest: guest.clone(), exec_id: exec_id.to_owned() }
    }

    /// Writes to the command's standard input, and waits until its pipe has taken all of it. `false` where it takes no more.
    ///
    /// # Errors
    /// The guest's refusal, its end, or its silence.
    pub async fn write_stdin(&self, mut bytes: Bytes) -> Result<bool, Error> {
        let operation = WriteStdin { exec_id: self.exec_id.clone() };
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(STDIN_PIECE_BYTES));
            let content = Box::pin(stream::once(std::future::ready(Ok(piece))));
            let (state, _) = self.guest.call_with(&operation, Some(content)).await?;
            if !state.open {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends the command's standard input behind what was written.
    ///
    /// # Errors
    /// Those of [`Self::write_stdin`].
    pub async fn end_stdin(&self) -> Result<(), Error> {
        self.guest.call(&EndStdin { exec_id: self.exec_id.clone() }).await.map(drop)
    }

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// Those of [`Self::write_stdin`].
    pub async fn signal(&self, signal: SignalName) -> Result<(), Error> {
        self.guest.call(&SignalCommand { exec_id: self.exec_id.clone(), signal }).await.map(drop)
    }
}
