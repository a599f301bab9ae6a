//! The standard input of one command.

use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use skep_api::{
    exec::Stdin,
    exec_stream::{EndStdin, STDIN_PIECE_BYTES, StdinState, WriteStdin},
};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::{mpsc, oneshot},
};

use crate::{Content, Error, Place, Run, RunStreamed, no_content};

/// Where input is handed in while the command runs.
#[derive(Debug)]
pub(super) struct Input(Mutex<Option<mpsc::Sender<Piece>>>);

/// What the command's pipe is filled from.
#[derive(Debug)]
pub(super) enum Source {
    Text(String),
    Pieces(mpsc::Receiver<Piece>),
}

#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    /// Dropped unused where the pipe does not take all of it.
    taken: oneshot::Sender<()>,
}

impl Input {
    /// The input of a command, and what its pipe is filled from; `None` for a command without a pipe.
    pub(super) fn of(stdin: &Stdin) -> (Self, Option<Source>) {
        let (sender, source) = match stdin {
            Stdin::Empty => (None, None),
            Stdin::Text(text) => (None, Some(Source::Text(text.clone()))),
            Stdin::Streamed { .. } => {
                // One piece waits at the most: its writer waits with it.
                let (sender, pieces) = mpsc::channel(1);
                (Some(sender), Some(Source::Pieces(pieces)))
            }
        };
        (Self(Mutex::new(sender)), source)
    }

    /// Waits until the pipe has taken these bytes. `false` where it takes no more: the command closed it or ended, or the
    /// input was ended.
    pub(super) async fn write(&self, bytes: Bytes) -> bool {
        let sender = self.sender().clone();
        let Some(sender) = sender else { return false };
        let (taken, is_taken) = oneshot::channel();
        sender.send(Piece { bytes, taken }).await.is_ok() && is_taken.await.is_ok()
    }

    /// The command reads the end of its input behind what was written.
    pub(super) fn end(&self) {
        *self.sender() = None;
    }

    /// Each change is a single assignment, so a panic elsewhere leaves the state whole.
    fn sender(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<Piece>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    /// Writes all of it, as fast as the command reads. A command may leave its input unread.
    pub(super) async fn feed(self, mut pipe: pipe::Sender) {
        match self {
            Self::Text(text) => {
                let _ = pipe.write_all(text.as_bytes()).await;
            }
            Self::Pieces(mut pieces) => {
                while let Some(Piece { bytes, taken }) = pieces.recv().await {
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
        // Read to its end before the command takes any of it: what is left unread fills the window of all requests.
        let mut bytes = BytesMut::new();
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(|error| Error::InputBroken { reason: error.to_string() })?;
            if bytes.len() + piece.len() > STDIN_PIECE_BYTES {
                let reason = format!("is longer than {STDIN_PIECE_BYTES} bytes; write it in pieces");
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
