//! The buffer between the socket and the standard input of a command.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use skep_api::exec_stream::{MAX_WRITE_BYTES, STDIN_WINDOW_BYTES};
use tokio::sync::Notify;

/// Input that the command has not read yet. Short messages are joined into larger pieces.
#[derive(Debug, Default)]
pub(super) struct StdinBuffer {
    state: Mutex<State>,
    added: Notify,
    taken: Notify,
}

#[derive(Debug, Default)]
struct State {
    bytes: BytesMut,
    /// The caller has ended the input.
    ended: bool,
    /// The command has closed its input.
    closed: bool,
}

impl StdinBuffer {
    /// Adds input, after waiting for capacity if the window is full. Input is dropped once the command has closed it.
    pub(super) async fn push(&self, bytes: &[u8]) {
        loop {
            let taken = self.taken.notified();
            {
                let mut state = self.state();
                if state.closed {
                    return;
                }
                if state.bytes.is_empty() || state.bytes.len() + bytes.len() <= STDIN_WINDOW_BYTES {
                    state.bytes.extend_from_slice(bytes);
                    self.added.notify_one();
                    return;
                }
            }
            taken.await;
        }
    }

    /// Marks the end of the input.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.added.notify_one();
    }

    /// Whether the end was marked.
    pub(super) fn is_ended(&self) -> bool {
        self.state().ended
    }

    /// Drops the buffered input and all further input.
    pub(super) fn close(&self) {
        *self.state() = State { closed: true, ..State::default() };
        self.taken.notify_one();
    }

    /// The next piece; `None` at the end of the input.
    pub(super) async fn next(&self) -> Option<Bytes> {
        loop {
            let added = self.added.notified();
            {
                let mut state = self.state();
                if !state.bytes.is_empty() {
                    let length = state.bytes.len().min(MAX_WRITE_BYTES);
                    let piece = state.bytes.split_to(length).freeze();
                    self.taken.notify_one();
                    return Some(piece);
                }
                if state.ended {
                    return None;
                }
            }
            added.await;
        }
    }

    /// Each change is made under one lock, so the state is consistent after a panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn input_is_joined_and_bounded_and_ends_behind_its_last_byte() {
        let buffer = StdinBuffer::default();
        buffer.push(b"a").await;
        buffer.push(b"b").await;
        assert_eq!(buffer.next().await.unwrap(), "ab");
        let large = vec![7; STDIN_WINDOW_BYTES];
        buffer.push(&large).await;
        assert!(buffer.push(b"x").now_or_never().is_none(), "the window is full");
        assert_eq!(buffer.next().await.unwrap().len(), MAX_WRITE_BYTES);
        assert!(buffer.push(b"x").now_or_never().is_some());
        buffer.end();
        let mut length = MAX_WRITE_BYTES;
        while let Some(piece) = buffer.next().await {
            length += piece.len();
        }
        assert_eq!(length, STDIN_WINDOW_BYTES + 1);
    }

    #[tokio::test]
    async fn a_closed_buffer_holds_nothing_and_lets_its_writer_go() {
        let buffer = StdinBuffer::default();
        buffer.push(&vec![7; STDIN_WINDOW_BYTES]).await;
        let waiting = buffer.push(b"x");
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        buffer.close();
        waiting.await;
        buffer.push(b"y").await;
        assert!(buffer.next().now_or_never().is_none());
    }
}
