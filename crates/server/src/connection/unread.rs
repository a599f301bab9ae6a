//! Request bodies that a handler did not read to their end.
//!
//! Most refusals do not wait for the body, such as that of a key without the scope. The next request of an HTTP/1.1
//! connection begins after that body. A short rest is read and dropped, so that the connection can be reused; for a
//! long rest, which would cost more than a new connection, the answer closes the connection.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, extract::Request};
use bytes::Bytes;
use http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;

/// The longest rest of a body that is read to reuse the connection, in bytes.
const SHORT: u64 = 64 << 10;
/// How long reading the rest may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Observes how far the body of a request is read.
#[derive(Debug)]
pub(super) struct Unread {
    rest: Arc<Mutex<Rest>>,
    /// Whether the client waits for `100 Continue` before it sends the body.
    waits: bool,
}

#[derive(Debug)]
enum Rest {
    /// The handler still holds it.
    Held,
    /// It was dropped before its end.
    Dropped {
        body: Body,
        /// Whether anything of it was read. The HTTP library sends `100 Continue` at the first read.
        was_read: bool,
    },
    /// It was read to its end.
    Ended,
    Broken,
}

impl Unread {
    /// Starts to observe the body of a request; `None` where it has none. Must be called before the body is read.
    pub(super) fn watch(request: Request) -> (Request, Option<Self>) {
        if request.body().is_end_stream() {
            return (request, None);
        }
        let rest = Arc::new(Mutex::new(Rest::Held));
        let unread = Self { rest: Arc::clone(&rest), waits: request.headers().contains_key(EXPECT) };
        let request = request.map(|body| Body::new(Watched { body, was_read: false, rest }));
        (request, Some(unread))
    }

    /// Whether the body was read to its end.
    pub(super) fn has_ended(&self) -> bool {
        matches!(*lock(&self.rest), Rest::Ended)
    }

    /// Reads a short rest to its end. Returns whether the end was reached.
    pub(super) async fn finish(self) -> bool {
        let rest = std::mem::replace(&mut *lock(&self.rest), Rest::Broken);
        match rest {
            Rest::Ended => true,
            Rest::Held | Rest::Broken => false,
            Rest::Dropped { was_read: false, .. } if self.waits => false,
            Rest::Dropped { body, .. } if body.size_hint().exact().is_none_or(|left| left > SHORT) => false,
            Rest::Dropped { body, .. } => timeout(PATIENCE, drain(body)).await.unwrap_or(false),
        }
    }
}

async fn drain(mut body: Body) -> bool {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    true
}

fn lock(rest: &Mutex<Rest>) -> MutexGuard<'_, Rest> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that is kept for [`Unread::finish`] where it is dropped before its end.
struct Watched {
    body: Body,
    was_read: bool,
    rest: Arc<Mutex<Rest>>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.was_read = true;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            None => *lock(&self.rest) = Rest::Ended,
            Some(Err(_)) => *lock(&self.rest) = Rest::Broken,
            Some(Ok(_)) => {}
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

impl Drop for Watched {
    fn drop(&mut self) {
        let mut rest = lock(&self.rest);
        if matches!(*rest, Rest::Held) {
            let body = std::mem::take(&mut self.body);
            let was_read = self.was_read;
            *rest = if body.is_end_stream() { Rest::Ended } else { Rest::Dropped { body, was_read } };
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn request(body: Body) -> Request {
        Request::new(body)
    }

    #[tokio::test]
    async fn a_short_rest_is_read_and_a_long_one_is_not() {
        for (length, ends) in [(1, true), (64 << 10, true), ((64 << 10) + 1, false)] {
            let (request, unread) = Unread::watch(request(Body::from(vec![0; length])));
            drop(request);
            assert_eq!(unread.unwrap().finish().await, ends, "{length}");
        }
        assert!(Unread::watch(request(Body::empty())).1.is_none());
    }

    #[tokio::test]
    async fn what_was_read_to_its_end_is_and_what_is_held_is_not() {
        let (request_, unread) = Unread::watch(request(Body::from("body")));
        assert_eq!(request_.into_body().collect().await.unwrap().to_bytes(), "body");
        assert!(unread.unwrap().finish().await);
        let (_held, unread) = Unread::watch(request(Body::from("body")));
        assert!(!unread.unwrap().finish().await);
    }

    #[tokio::test]
    async fn a_rest_of_unknown_length_is_not_read() {
        let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>("more")));
        let (request, unread) = Unread::watch(request(endless));
        drop(request);
        assert!(!unread.unwrap().finish().await);
    }

    #[tokio::test]
    async fn nobody_is_asked_for_a_body_that_is_thrown_away() {
        let mut waiting = request(Body::from("body"));
        waiting.headers_mut().insert(EXPECT, http::HeaderValue::from_static("100-continue"));
        let (request, unread) = Unread::watch(waiting);
        drop(request);
        assert!(!unread.unwrap().finish().await);
    }
}
