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
const MAX_DRAIN_BYTES: u64 = 64 << 10;
/// How long reading the rest may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Observes how far the body of a request is read.
#[derive(Debug)]
pub(super) struct UnreadBody {
    state: Arc<Mutex<BodyState>>,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

#[derive(Debug)]
enum BodyState {
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

impl UnreadBody {
    /// Starts to observe the body of a request; `None` where it has none. Must be called before the body is read.
    pub(super) fn watch(request: Request) -> (Request, Option<Self>) {
        if request.body().is_end_stream() {
            return (request, None);
        }
        let rest = Arc::new(Mutex::new(BodyState::Held));
        let unread =
            Self { state: Arc::clone(&rest), expects_continue: request.headers().contains_key(EXPECT) };
        let request = request.map(|body| Body::new(WatchedBody { body, was_read: false, state: rest }));
        (request, Some(unread))
    }

    /// Whether the body was read to its end.
    pub(super) fn has_ended(&self) -> bool {
        matches!(*lock(&self.state), BodyState::Ended)
    }

    /// Reads a short rest to its end. Returns whether the end was reached.
    pub(super) async fn finish(self) -> bool {
        let rest = std::mem::replace(&mut *lock(&self.state), BodyState::Broken);
        match rest {
            BodyState::Ended => true,
            BodyState::Held | BodyState::Broken => false,
            BodyState::Dropped { was_read: false, .. } if self.expects_continue => false,
            BodyState::Dropped { body, .. }
                if body.size_hint().exact().is_none_or(|left| left > MAX_DRAIN_BYTES) =>
            {
                false
            }
            BodyState::Dropped { body, .. } => timeout(DRAIN_TIMEOUT, drain(body)).await.unwrap_or(false),
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

fn lock(rest: &Mutex<BodyState>) -> MutexGuard<'_, BodyState> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that is kept for [`UnreadBody::finish`] where it is dropped before its end.
struct WatchedBody {
    body: Body,
    was_read: bool,
    state: Arc<Mutex<BodyState>>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.was_read = true;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            None => *lock(&self.state) = BodyState::Ended,
            Some(Err(_)) => *lock(&self.state) = BodyState::Broken,
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

impl Drop for WatchedBody {
    fn drop(&mut self) {
        let mut rest = lock(&self.state);
        if matches!(*rest, BodyState::Held) {
            let body = std::mem::take(&mut self.body);
            let was_read = self.was_read;
            *rest =
                if body.is_end_stream() { BodyState::Ended } else { BodyState::Dropped { body, was_read } };
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
            let (request, unread) = UnreadBody::watch(request(Body::from(vec![0; length])));
            drop(request);
            assert_eq!(unread.unwrap().finish().await, ends, "{length}");
        }
        assert!(UnreadBody::watch(request(Body::empty())).1.is_none());
    }

    #[tokio::test]
    async fn only_a_body_that_was_read_to_its_end_has_ended() {
        let (request_, unread) = UnreadBody::watch(request(Body::from("body")));
        assert_eq!(request_.into_body().collect().await.unwrap().to_bytes(), "body");
        assert!(unread.unwrap().finish().await);
        let (_held, unread) = UnreadBody::watch(request(Body::from("body")));
        assert!(!unread.unwrap().finish().await);
    }

    #[tokio::test]
    async fn a_rest_of_unknown_length_is_not_read() {
        let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>("more")));
        let (request, unread) = UnreadBody::watch(request(endless));
        drop(request);
        assert!(!unread.unwrap().finish().await);
    }

    #[tokio::test]
    async fn no_100_continue_is_sent_for_a_discarded_body() {
        let mut waiting = request(Body::from("body"));
        waiting.headers_mut().insert(EXPECT, http::HeaderValue::from_static("100-continue"));
        let (request, unread) = UnreadBody::watch(waiting);
        drop(request);
        assert!(!unread.unwrap().finish().await);
    }
}
