//! Reading on for a while after an answer that did not wait for the whole request.
//!
//! A socket that is closed with bytes unread resets its connection, and a caller that still sends learns of that instead
//! of the refusal. So what it sends is thrown away until it has read the answer and closes, or takes too long.

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

/// How long a caller may take to read its refusal.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time that is left for the caller.
#[derive(Debug)]
pub(super) struct Linger(Pin<Box<Sleep>>);

impl Linger {
    /// From now on.
    pub(super) fn begin() -> Self {
        Self(Box::pin(sleep(PATIENCE)))
    }

    /// Throws away what comes; ready when nothing more will, or it took too long.
    pub(super) fn poll(&mut self, mut from: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>) -> Poll<()> {
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
