//! Connections with our words where the HTTP library answers by itself.
//!
//! What is not HTTP never becomes a request, so no layer of the router sees it: hyper answers a bare 400, 414 or 431 and
//! closes. Here that answer gets the shape that every refusal has.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ulid::Ulid;

use crate::{
    error::bare_answer,
    linger::{Linger, Unread},
    request::API_VERSION,
};

/// Longer than any bare answer of hyper's.
const LONGEST_BARE: usize = 256;

/// A connection whose bare answers are given our shape.
#[derive(Debug)]
pub(crate) struct Connection<T> {
    inner: T,
    /// Of an answer put in place of a bare one: what is not yet written.
    pending: Vec<u8>,
    unread: Unread,
    /// On HTTP/2 the library answers in frames, which nobody can put in other words.
    is_http1: bool,
    /// What is left to do since we said that nothing more will come from us.
    closing: Option<Option<Linger>>,
}

impl<T: AsyncWrite + Unpin> Connection<T> {
    /// A connection, and what it knows of the bodies of its requests.
    pub(crate) fn new(inner: T, unread: Unread, is_http1: bool) -> Self {
        Self { inner, pending: Vec::new(), unread, is_http1, closing: None }
    }

    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.pending))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.pending.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_pending(cx))?;
        if self.is_http1
            && let Some(answer) = in_our_words(bytes)
        {
            // Taken whole; the flush that follows writes it.
            self.pending = answer;
            // Whatever else was sent is not read any more.
            self.unread.note();
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_pending(cx))?;
        if this.closing.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
            this.closing = Some(this.unread.linger());
        }
        if let Some(Some(linger)) = &mut this.closing {
            ready!(linger.poll(Pin::new(&mut this.inner), cx));
        }
        Poll::Ready(Ok(()))
    }
}

/// The answer in place of a bare one of hyper's; `None` where the bytes are anything else.
fn in_our_words(bytes: &[u8]) -> Option<Vec<u8>> {
    let rest = bytes.strip_prefix(b"HTTP/1.1 ").filter(|_| bytes.len() <= LONGEST_BARE)?;
    let text = std::str::from_utf8(rest).ok().filter(|text| text.ends_with("\r\n\r\n"))?;
    let status: StatusCode = text.get(..3)?.parse().ok()?;
    // Every answer of the router carries our version.
    let bare = status.is_client_error() && !text.to_ascii_lowercase().contains("skep-version");
    bare.then(|| bare_refusal(status).into_bytes())
}

/// The whole answer to what never became a request.
pub(crate) fn bare_refusal(status: StatusCode) -> String {
    let (code, body) = bare_answer(status);
    let request_id = Ulid::generate().to_string().to_ascii_lowercase();
    tracing::info!(request_id, status = status.as_u16(), "request {request_id}: it was no HTTP");
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\
         skep-error: {}\r\nskep-version: {API_VERSION}\r\nx-request-id: {request_id}\r\n\r\n{body}",
        body.len(),
        code.as_str()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_refusals_are_put_in_our_words() {
        let bare = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let ours = String::from_utf8(in_our_words(bare).unwrap()).unwrap();
        assert!(ours.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{ours}");
        assert!(ours.contains("\r\nskep-error: malformed_request\r\n"), "{ours}");
        assert!(ours.ends_with('}') && ours.contains("\"error\":\"Bad Request\""), "{ours}");
        for other in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 404 Not Found\r\nskep-version: 1\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\n{}",
            b"data",
            b"",
        ] {
            assert_eq!(in_our_words(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
