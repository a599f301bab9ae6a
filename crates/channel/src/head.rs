//! The body of streamed operations and their answers: a JSON head, followed by bytes of any length.
//!
//! The length of the head comes first, in 4 bytes, big-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::{StreamExt, stream, stream::BoxStream};
use http_body_util::{BodyDataStream, BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame};

/// A stream of bytes. An error ends the stream and means that it is incomplete.
pub type Content = BoxStream<'static, std::io::Result<Bytes>>;

/// A body whose stream may fail.
pub(crate) type BodyStream = UnsyncBoxBody<Bytes, std::io::Error>;

const LENGTH_BYTES: usize = 4;

/// Why a body has no valid head.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeadError<E> {
    #[error("the body was cut short: {0}")]
    Broken(E),
    #[error("the body ended within its head")]
    Short,
    #[error("the head has {0} bytes, more than allowed")]
    Long(usize),
}

/// Joins a head and the content after it into a body.
pub(crate) fn join(head: &[u8], content: Content) -> BodyStream {
    let mut framed = BytesMut::with_capacity(LENGTH_BYTES + head.len());
    framed.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    framed.put_slice(head);
    let first = stream::once(std::future::ready(Ok(framed.freeze())));
    StreamBody::new(first.chain(content).map(|piece| piece.map(Frame::data))).boxed_unsync()
}

/// Splits a body into its head and the content after it. Reads at most one frame beyond the head.
pub(crate) async fn split<B>(mut body: B, limit: usize) -> Result<(Bytes, Content), HeadError<B::Error>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut early = BytesMut::new();
    let length = loop {
        if let Some(mut length) = early.get(..LENGTH_BYTES) {
            let length = length.get_u32() as usize;
            if length > limit {
                return Err(HeadError::Long(length));
            }
            if early.len() >= LENGTH_BYTES + length {
                break length;
            }
        }
        let frame = body.frame().await.ok_or(HeadError::Short)?.map_err(HeadError::Broken)?;
        if let Ok(data) = frame.into_data() {
            early.extend_from_slice(&data);
        }
    };
    early.advance(LENGTH_BYTES);
    let head = early.split_to(length).freeze();
    let early = Some(early.freeze()).filter(|early| !early.is_empty());
    let rest = BodyDataStream::new(body).map(|piece| piece.map_err(std::io::Error::other));
    Ok((head, Box::pin(stream::iter(early.map(Ok)).chain(rest))))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use proptest::prelude::*;

    use super::*;

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    async fn all(mut content: Content) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(piece) = content.next().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        bytes
    }

    proptest! {
        #[test]
        fn head_and_content_survive_the_way_in_any_pieces(
            head in prop::collection::vec(any::<u8>(), 0..100),
            content in prop::collection::vec(any::<u8>(), 0..200),
            size in 1usize..40,
        ) {
            let pieces: Vec<_> = content.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            let whole = wait(join(&head, Box::pin(stream::iter(pieces))).collect()).unwrap().to_bytes();
            let frames: Vec<_> = whole.chunks(size).map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::copy_from_slice(piece)))).collect();
            let (split_head, rest) = wait(split(StreamBody::new(stream::iter(frames)), 100)).unwrap();
            prop_assert_eq!(&split_head[..], &head[..]);
            prop_assert_eq!(wait(all(rest)), content);
        }

        #[test]
        fn garbage_is_refused_or_has_a_head(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            match wait(split(Full::new(Bytes::from(bytes.clone())), 50)) {
                Ok((head, _)) => prop_assert!(head.len() <= 50 && head.len() + LENGTH_BYTES <= bytes.len()),
                Err(HeadError::Long(length)) => prop_assert!(length > 50),
                Err(HeadError::Short) => {}
                Err(HeadError::Broken(never)) => match never {},
            }
        }
    }
}
