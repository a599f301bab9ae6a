//! An answer body that owns a resource of its request.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Holds a value, such as a permit or a memory reservation, until the body is sent or aborted.
pub(crate) fn keep_to_end<T: Unpin + Send + 'static>(body: Body, kept: T) -> Body {
    Body::new(KeepingBody { body, _kept: kept })
}

struct KeepingBody<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> HttpBody for KeepingBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
