//! The standard input of one command.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use skep_api::{
    exec::Stdin,
    exec_stream::{EndStdin, MAX_WRITE_BYTES, StdinState, WriteStdin},
};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::{mpsc, oneshot},
};

use crate::{Content, Error, Place, Run, RunStreamed, no_content};

/// The writing end of a command's input.
#[derive(Debug)]
pub(super) struct Input(Mutex<Option<mpsc::Sender<StdinChunk>>>);

/// The data for the standard input pipe of a command.
#[derive(Debug)]
pub(super) enum StdinSource {
    Text(String),
    Chunks(mpsc::Receiver<StdinChunk>),
}

#[derive(Debug)]
pub(super) struct StdinChunk {
    bytes: Bytes,
    /// Dropped without sending if the pipe is closed before all bytes are written.
    taken: oneshot::Sender<()>,
}

impl Input {
    /// The input of a command and its source. The source is `None` for a command without a pipe.
    pub(super) fn from_stdin(stdin: &Stdin) -> (Self, Option<StdinSource>) {
        let (sender, source) = match stdin {
            Stdin::Empty => (None, None),
            Stdin::Text(text) => (None, Some(StdinSource::Text(text.clone()))),
            Stdin::Streamed { .. } => {
                // At most one chunk is queued, so that the writer waits for the command.
                let (sender, pieces) = mpsc::channel(1);
                (Some(sender), Some(StdinSource::Chunks(pieces)))
            }
        };
        (Self(Mutex::new(sender)), source)
    }

    /// Waits until the pipe has taken these bytes. Returns `false` if it accepts no more: the command closed it or
    /// ended, or [`Self::end`] was called.
    pub(super) async fn write(&self, bytes: Bytes) -> bool {
        let sender = self.sender().clone();
        let Some(sender) = sender else { return false };
        let (taken, is_taken) = oneshot::channel();
        sender.send(StdinChunk { bytes, taken }).await.is_ok() && is_taken.await.is_ok()
    }

    /// Closes the pipe after what was written.
    pub(super) fn end(&self) {
        *self.sender() = None;
    }

    /// Recovering from poisoning is sound: each change is a single assignment.
    fn sender(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<StdinChunk>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StdinSource {
    /// Writes all data, as fast as the command reads. The command may leave its input unread.
    pub(super) async fn write_to(self, mut pipe: pipe::Sender) {
        match self {
            Self::Text(text) => {
                let _ = pipe.write_all(text.as_bytes()).await;
            }
            Self::Chunks(mut pieces) => {
                while let Some(StdinChunk { bytes, taken }) = pieces.recv().await {
                    if pipe.write_all(&bytes).await.is_err() {
                        return;
                    }
                    let _ = taken.send(());
                }
            }
        }
    }
}

impl RunStreamed for WriteStdin {
    async fn run_streamed(self, mut content: Content, place: &Place) -> Result<(StdinState, Content), Error> {
        let running = place.commands().find(&self.exec_id)?;
        // Buffered completely before the command takes any of it: unread content would block the window of the HTTP/2
        // connection.
        let mut bytes = BytesMut::new();
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(|error| Error::InputBroken { reason: error.to_string() })?;
            if bytes.len() + piece.len() > MAX_WRITE_BYTES {
                let reason = format!("is longer than {MAX_WRITE_BYTES} bytes; write it in pieces");
                return Err(Error::InvalidValue { field: "stdin", reason });
            }
            bytes.extend_from_slice(&piece);
        }
        let open = running.write_stdin(bytes.freeze()).await;
        Ok((StdinState { open }, no_content()))
    }
}

impl Run for EndStdin {
    async fn run(self, place: &Place) -> Result<StdinState, Error> {
        place.commands().find(&self.exec_id)?.end_stdin();
        Ok(StdinState { open: false })
    }
}
