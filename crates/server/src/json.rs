//! JSON answers. A long answer is serialized on a blocking thread and sent in pieces.

use std::io;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, header::CONTENT_TYPE};
use serde::Serialize;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::error::Refusal;

/// Answers longer than this, in bytes, are serialized on a blocking thread and sent in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

/// An answer whose body is a value as JSON.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize + Send + 'static> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut short = BoundedBuffer(Vec::with_capacity(128));
        let body = match serde_json::to_writer(&mut short, &self.0) {
            Ok(()) => Body::from(short.0),
            Err(error) if error.is_io() => {
                stream_in_pieces(spawn_blocking(move || serde_json::to_vec(&self.0).map_err(io::Error::from)))
            }
            Err(error) => {
                return Refusal::internal(format!("an answer is not JSON: {error}")).into_response();
            }
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A buffer that fails a write beyond the size of one piece.
struct BoundedBuffer(Vec<u8>);

impl io::Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > PIECE_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The state of a long answer.
enum LongAnswer {
    /// A blocking task serializes it.
    Serializing(JoinHandle<io::Result<Vec<u8>>>),
    Sending {
        json: Vec<u8>,
        at: usize,
    },
}

/// Each piece is a copy, so that a queued piece does not keep the whole answer in memory after the body is dropped.
fn stream_in_pieces(serialized: JoinHandle<io::Result<Vec<u8>>>) -> Body {
    let pieces = stream::try_unfold(LongAnswer::Serializing(serialized), |long| async {
        let (json, at) = match long {
            LongAnswer::Serializing(task) => (task.await.map_err(io::Error::other)??, 0),
            LongAnswer::Sending { json, at } => (json, at),
        };
        let end = json.len().min(at + PIECE_BYTES);
        let piece = Bytes::copy_from_slice(&json[at..end]);
        Ok::<_, io::Error>((at < end).then_some((piece, LongAnswer::Sending { json, at: end })))
    });
    Body::from_stream(pieces)
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use http_body_util::BodyExt;
    use serde::Serializer;

    use super::*;

    async fn body(answer: impl IntoResponse) -> Vec<u8> {
        let response = answer.into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        response.into_body().collect().await.unwrap().to_bytes().into()
    }

    #[tokio::test]
    async fn an_answer_is_the_same_however_long_it_is() {
        for length in [0, 1, PIECE_BYTES - 2, PIECE_BYTES - 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 7] {
            let value = "\u{1}x".repeat(length);
            assert!(body(Json(value.clone())).await == serde_json::to_vec(&value).unwrap(), "{length}");
        }
    }

    /// Sends the id of the thread that serializes it.
    struct ReportsThread(usize, std::sync::mpsc::Sender<ThreadId>);

    impl Serialize for ReportsThread {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let written = serializer.serialize_str(&"x".repeat(self.0))?;
            let _ = self.1.send(thread::current().id());
            Ok(written)
        }
    }

    #[tokio::test]
    async fn a_long_answer_is_written_on_another_thread() {
        let (sender, threads) = std::sync::mpsc::channel();
        body(Json(ReportsThread(10, sender.clone()))).await;
        assert_eq!(threads.try_recv().unwrap(), thread::current().id());
        body(Json(ReportsThread(PIECE_BYTES, sender))).await;
        assert_ne!(threads.try_recv().unwrap(), thread::current().id());
        assert!(threads.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_value_that_cannot_be_serialized_is_an_internal_error() {
        let refused = Json(std::collections::HashMap::from([((1, 2), 3)])).into_response();
        assert_eq!(refused.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
    }
}
