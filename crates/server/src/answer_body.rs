//! An answer body that owns a resource of its request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Holds a value, such as a permit or a memory reservation, until the body is sent or aborted.
pub(crate) fn keep_to_end<T: Send + Sync + 'static>(body: Body, kept: T) -> Body {
    Body::new(KeepingBody { body, kept: Arc::new(kept) })
}

/// A part of a body that owns a value. The HTTP library drops a body when it has taken the last part, which may then wait for the
/// client, so each part owns what is held until the body is sent.
fn owning<T: Send + Sync + 'static>(bytes: Bytes, kept: &Arc<T>) -> Bytes {
    Bytes::from_owner(Part { bytes, _kept: Arc::clone(kept) })
}

struct Part<T> {
    bytes: Bytes,
    _kept: Arc<T>,
}

impl<T> AsRef<[u8]> for Part<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct KeepingBody<T> {
    body: Body,
    kept: Arc<T>,
}

impl<T: Send + Sync + 'static> HttpBody for KeepingBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map_ok(|frame| frame.map_data(|bytes| owning(bytes, &self.kept)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_part_keeps_the_value_after_the_body() {
        let kept = Arc::new(());
        let mut body = keep_to_end(Body::from("one part"), Arc::clone(&kept));
        let part = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!((part.as_ref(), Arc::strong_count(&kept)), (&b"one part"[..], 2));
        drop(part);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
