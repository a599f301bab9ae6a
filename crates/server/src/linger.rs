//! Reading on for a while after an answer that did not wait for the whole request.
//!
//! A socket that is closed with bytes unread resets its connection, and a caller that still sends learns of that instead
//! of the refusal. So what it sends is thrown away until it has read the answer and closes, or takes too long.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, extract::Request};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

/// How long a caller may take to read its refusal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a connection's last request has a body that was not read to its end. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Watches over the body of a request. To be called before anything reads it.
    pub(crate) fn watch(request: Request) -> Request {
        let Some(unread) = request.extensions().get::<Self>().cloned() else { return request };
        let there = !request.body().is_end_stream();
        unread.0.store(there, Ordering::Relaxed);
        if there { request.map(|body| Body::new(Watched { body, unread })) } else { request }
    }

    /// Whether there is more that will not be read.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A body that says when it was read to its end.
struct Watched {
    body: Body,
    unread: Unread,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.unread.0.store(false, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The time that is left for the caller.
#[derive(Debug)]
pub(crate) struct Linger(Pin<Box<Sleep>>);

impl Linger {
    /// From now on.
    pub(crate) fn begin() -> Self {
        Self(Box::pin(sleep(PATIENCE)))
    }

    /// Throws away what comes; ready when nothing more will, or it took too long.
    pub(crate) fn poll(&mut self, mut from: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>) -> Poll<()> {
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
