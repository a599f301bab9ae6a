//! The body of a request as a stream of any length.

use axum::body::Body as HttpBody;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use skep_workspace::Content;
use std::{io, time::Instant};
use tokio::sync::mpsc;

use crate::{
    body::{Throughput, too_slow},
    door::limits::BodyTimeouts,
};

/// Pieces that are read ahead of the consumer.
const READ_AHEAD: usize = 2;

/// One piece of a body, or its end. A stream that stops without `End` is incomplete.
enum Piece {
    Bytes(io::Result<Bytes>),
    End,
}

/// Runs `work` on the content of a body. The body is read only while this future is polled. When it is dropped, as on a
/// disconnect, the content ends with an error, so that an incomplete body is not taken for a complete one.
pub(crate) async fn with_content<F: Future>(
    body: HttpBody,
    times: BodyTimeouts,
    work: impl FnOnce(Content) -> F,
) -> F::Output {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let content = stream::unfold(Some(receiver), |receiver| async move {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Piece::Bytes(Ok(bytes))) => Some((Ok(bytes), Some(receiver))),
            Some(Piece::Bytes(Err(error))) => Some((Err(error), None)),
            Some(Piece::End) => None,
            None => Some((Err(io::Error::new(io::ErrorKind::BrokenPipe, "the client disconnected")), None)),
        }
    });
    let reading = async {
        read(body, times, &sender).await;
        std::future::pending::<F::Output>().await
    };
    tokio::select! {
        // The consumer may poll the content again after its end.
        done = work(Box::pin(content.fuse())) => done,
        never = reading => never,
    }
}

async fn read(mut body: HttpBody, times: BodyTimeouts, sender: &mpsc::Sender<Piece>) {
    let mut throughput = Throughput::new(times.stall);
    loop {
        let (began, left) = (Instant::now(), throughput.left());
        let frame = tokio::time::timeout(left, body.frame()).await;
        let (waited, received) = (began.elapsed(), throughput.received);
        let slow = |received| {
            let why = io::Error::new(io::ErrorKind::TimedOut, too_slow(received, times.stall));
            Piece::Bytes(Err(why))
        };
        let piece = match frame {
            Err(_) if throughput.add(waited.max(left), 0) => continue,
            Err(_) => slow(received),
            Ok(None) => Piece::End,
            Ok(Some(Err(error))) => Piece::Bytes(Err(io::Error::other(error))),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if !throughput.add(waited, data.len()) => slow(received + data.len()),
                Ok(data) if data.is_empty() => continue,
                Ok(data) => Piece::Bytes(Ok(data)),
                Err(_) => continue,
            },
        };
        let last = !matches!(piece, Piece::Bytes(Ok(_)));
        // The consumer may stop early with a refusal of its own.
        if sender.send(piece).await.is_err() || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn times() -> BodyTimeouts {
        BodyTimeouts { total: Duration::from_secs(1), stall: Duration::from_millis(20) }
    }

    async fn all(mut content: Content) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = content.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok(bytes)
    }

    #[tokio::test]
    async fn a_whole_body_ends_and_a_broken_one_does_not() {
        let pieces = |last: io::Result<&'static str>| {
            HttpBody::from_stream(stream::iter([Ok("one"), Ok("two"), last]))
        };
        let whole = with_content(pieces(Ok("!")), times(), all).await;
        assert_eq!(whole.unwrap(), b"onetwo!");
        let broken = with_content(pieces(Err(io::Error::other("cut"))), times(), all).await;
        assert!(broken.unwrap_err().to_string().contains("cut"));
        let silent = HttpBody::from_stream(stream::pending::<io::Result<&str>>());
        // Each wait ends before nothing has come for long.
        let slow = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Some((Ok::<_, io::Error>("1"), ()))
        });
        for endless in [silent, HttpBody::from_stream(slow)] {
            let error = with_content(endless, times(), all).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
    }

    #[tokio::test]
    async fn a_dropped_body_ends_its_content_with_an_error() {
        let body = HttpBody::from_stream(stream::iter([Ok::<_, io::Error>("one")]).chain(stream::pending()));
        let (give, taken) = tokio::sync::oneshot::channel();
        let mut reading = Box::pin(with_content(body, times(), |content| async {
            let _ = give.send(content);
            std::future::pending::<()>().await
        }));
        assert!((&mut reading).now_or_never().is_none());
        let content = taken.await.unwrap();
        drop(reading);
        assert_eq!(all(content).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
