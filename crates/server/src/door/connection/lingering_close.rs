//! Lingering close: keeps reading for a while after an answer that did not wait for the whole request.
//!
//! Closing a socket with unread data resets the connection, and a client that is still sending gets the reset instead
//! of the refusal. So received data is discarded until the client closes or a time limit passes.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

/// How long a client may take to read its refusal and close.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The timer of a lingering close.
#[derive(Debug)]
pub(super) struct LingeringClose(Pin<Box<Sleep>>);

impl LingeringClose {
    pub(super) fn begin() -> Self {
        Self(Box::pin(sleep(TIMEOUT)))
    }

    /// Discards received data. Ready when the client has closed or the time limit has passed.
    pub(super) fn poll_discard(
        &mut self,
        mut from: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut space = [0; 16 << 10];
        while self.0.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(from.as_mut().poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(())
    }
}
