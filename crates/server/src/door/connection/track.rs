//! The layer that tracks a connection's requests, and closes the connection after its last one, or where an unread body
//! would prevent the next one.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header::CONNECTION};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio_util::task::TaskTracker;

use super::{
    exchanges::{Exchange, Exchanges, LastReason},
    unread_body::UnreadBody,
};

/// The largest part of an HTTP/2 answer, in bytes. The HTTP library queues a whole part as soon as the client has room for one
/// byte. Small parts make the progress of a slow client visible.
const HTTP2_PART: usize = 64 << 10;

/// The outermost layer. It adds the [`HeadRefusal`](crate::error::HeadRefusal) to a request that substitutes a refused
/// head. `requests` has each request until it is answered.
pub(crate) async fn track(State(requests): State<TaskTracker>, mut request: Request, next: Next) -> Response {
    let _under_way = requests.token();
    let Some(exchanges) = request.extensions().get::<Exchanges>().cloned() else {
        return next.run(request).await;
    };
    let exchange = exchanges.begin();
    let last = exchanges.last(exchange.number);
    if let Some(LastReason::Refused(refusal)) = last {
        request.extensions_mut().insert(refusal);
    }
    let is_http1 = request.version() <= Version::HTTP_11;
    let (request, unread) = UnreadBody::watch(request);
    let mut response = next.run(request).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        exchanges.upgrade();
        return response;
    }
    let is_read = match unread {
        None => true,
        Some(unread) if is_http1 && last.is_none() => unread.finish().await,
        // On HTTP/2 and for a last request, an unread body does not affect other requests.
        Some(unread) => unread.has_ended(),
    };
    exchanges.set_unread(!is_read);
    if last.is_some() || (is_http1 && !is_read) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let largest_part = if is_http1 { usize::MAX } else { HTTP2_PART };
    let exchange = Arc::new(exchange);
    response.map(|body| Body::new(TrackedBody { body, exchange, rest: Bytes::new(), largest_part }))
}

/// The body of an answer, whose parts keep its [`Exchange`] until they are sent.
struct TrackedBody {
    body: Body,
    exchange: Arc<Exchange>,
    /// What is left of the latest part of `body`.
    rest: Bytes,
    largest_part: usize,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(bytes))) => self.rest = bytes,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let size = self.rest.len().min(self.largest_part);
        let part = Part::new(self.rest.split_to(size), &self.exchange);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

/// A part of an answer, until it is sent or dropped.
struct Part {
    bytes: Bytes,
    exchange: Arc<Exchange>,
}

impl Part {
    fn new(bytes: Bytes, exchange: &Arc<Exchange>) -> Self {
        exchange.part_given();
        Self { bytes, exchange: Arc::clone(exchange) }
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.exchange.part_sent();
    }
}
