//! The layer that tracks a connection's requests, and closes the connection after its last one, or where an unread body
//! would prevent the next one.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header::CONNECTION};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::{
    exchanges::{Exchange, Exchanges, LastReason},
    unread_body::UnreadBody,
};

/// The outermost layer. It adds the [`HeadRefusal`](crate::error::HeadRefusal) to a request that substitutes a refused
/// head.
pub(crate) async fn track(mut request: Request, next: Next) -> Response {
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
    response.map(|body| Body::new(TrackedBody { body, exchange }))
}

/// The body of an answer, which keeps its [`Exchange`] until it is sent.
struct TrackedBody {
    body: Body,
    exchange: Exchange,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // The HTTP library polls again only once it had room for the previous frame.
        self.exchange.part_taken();
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if matches!(frame, Some(Ok(_))) {
            self.exchange.part_given();
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
