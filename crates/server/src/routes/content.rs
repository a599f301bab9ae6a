//! Streams the content of a file as JSON in pieces, so that memory holds no second copy of it, and no thread is blocked
//! by encoding 32 MiB at once.

use std::convert::Infallible;

use axum::{
    body::Body as HttpBody,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderValue,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use skep_api::{budget::json_len, files::FileContent};

use crate::{error::Refusal, json::Json};

/// The size of a piece, in bytes of content. Shorter content is encoded at once.
const PIECE_BYTES: usize = 64 << 10;
/// The place of the content in the encoded answer. It cannot occur in a value, where quotes have a backslash.
const EMPTY_CONTENT: &str = "\"content\":\"\"";

/// The response with a file's content.
///
/// # Errors
/// `internal` if it cannot be encoded.
pub(super) async fn answer(mut file: FileContent) -> Result<Response, Refusal> {
    if file.content.len() <= PIECE_BYTES {
        return Ok(Json(file).into_response());
    }
    let content = std::mem::take(&mut file.content);
    let internal = |error: String| Refusal::internal(error);
    let around = serde_json::to_string(&file).map_err(|error| internal(error.to_string()))?;
    let at = around.find(EMPTY_CONTENT).ok_or_else(|| internal("an answer without `content`".to_owned()))?;
    let (head, tail) = around.split_at(at + EMPTY_CONTENT.len() - 1);
    let measured = tokio::task::spawn_blocking(move || (json_len(&content), content));
    let (bytes, content) = measured.await.map_err(|error| internal(error.to_string()))?;
    // `bytes` includes the quotes of the content, which are part of `around` too.
    let length = around.len() + bytes - 2;
    let parts = ContentStream {
        head: Some(head.to_owned().into()),
        content,
        sent: 0,
        tail: Some(tail.to_owned().into()),
    };
    let pieces = stream::unfold(parts, |mut parts| async move {
        let piece = parts.next()?;
        Some((Ok::<_, Infallible>(piece), parts))
    });
    let mut answer = Response::new(HttpBody::from_stream(pieces));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok(answer)
}

/// A response that is being sent.
struct ContentStream {
    head: Option<Bytes>,
    content: String,
    /// Bytes of the content that were sent.
    sent: usize,
    tail: Option<Bytes>,
}

impl ContentStream {
    fn next(&mut self) -> Option<Bytes> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        if self.sent == self.content.len() {
            return self.tail.take();
        }
        let mut end = self.content.len().min(self.sent + PIECE_BYTES);
        while !self.content.is_char_boundary(end) {
            end += 1;
        }
        // A string always serializes.
        let piece = serde_json::to_string(&self.content[self.sent..end]).unwrap_or_default();
        self.sent = end;
        let quoted = Bytes::from(piece);
        Some(quoted.slice(1..quoted.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use jiff::Timestamp;

    use super::*;

    #[tokio::test]
    async fn streamed_content_equals_content_encoded_at_once() {
        for text in ["x", "\u{2603}\u{1}\"\\", "\n"] {
            for times in [1, PIECE_BYTES / text.len() + 1, 3 * PIECE_BYTES + 1] {
                let file = FileContent {
                    path: "/\"content\":\"\"".to_owned(),
                    path_encoding: None,
                    content: text.repeat(times),
                    encoding: "utf-8".to_owned(),
                    size_bytes: 1,
                    modified_at: Timestamp::UNIX_EPOCH,
                    etag: "\"1\"".to_owned(),
                    truncated: false,
                };
                let whole = serde_json::to_vec(&file).unwrap();
                let answer = answer(file).await.unwrap();
                assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
                if let Some(length) = answer.headers().get(CONTENT_LENGTH) {
                    assert_eq!(length.to_str().unwrap(), whole.len().to_string());
                }
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                assert!(body == whole, "{text:?} {times} times");
            }
        }
    }
}
