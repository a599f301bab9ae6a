//! The byte stream beneath successive HTTP/2 connections.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::marker::{Marker, Scanner};

const READ_BYTES: usize = 16 * 1024;

/// The byte stream, with a scanner for markers.
#[derive(Debug)]
pub(super) struct SharedStream<S>(Arc<Mutex<Inner<S>>>);

#[derive(Debug)]
struct Inner<S> {
    stream: S,
    scanner: Scanner,
    buffer: Box<[u8]>,
    /// Bytes for the current connection, read up to `position`.
    passed: Vec<u8>,
    position: usize,
    /// The bytes after a marker.
    rest: Vec<u8>,
    /// A marker that has not been answered. The connection before it is over.
    pending_marker: Option<Marker>,
    closed: bool,
}

impl<S: AsyncRead + Unpin> SharedStream<S> {
    pub(super) fn new(stream: S) -> Self {
        let inner = Inner {
            stream,
            scanner: Scanner::default(),
            buffer: vec![0; READ_BYTES].into(),
            passed: Vec::new(),
            position: 0,
            rest: Vec::new(),
            pending_marker: None,
            closed: false,
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Discards everything up to the next marker. `None` at the end of the stream.
    pub(super) async fn next_marker(&self) -> io::Result<Option<Marker>> {
        poll_fn(|cx| {
            let mut inner = lock(&self.0);
            loop {
                inner.passed.clear();
                inner.position = 0;
                if let Some(marker) = inner.pending_marker.take() {
                    return Poll::Ready(Ok(Some(marker)));
                }
                if inner.closed {
                    return Poll::Ready(Ok(None));
                }
                ready!(inner.poll_fill(cx))?;
            }
        })
        .await
    }

    /// Drives a connection until it is over, the stream ends, or a marker starts the next connection.
    pub(super) async fn until_superseded(&self, connection: impl Future) {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            let over = connection.as_mut().poll(cx).is_ready();
            let inner = lock(&self.0);
            if over || inner.closed || inner.pending_marker.is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl<S: AsyncRead + Unpin> Inner<S> {
    /// Reads the next bytes. All of `passed` must have been consumed.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.passed.clear();
        self.position = 0;
        let Self { stream, scanner, buffer, passed, .. } = self;
        let rest = std::mem::take(&mut self.rest);
        let mut read = ReadBuf::new(buffer);
        let input = if rest.is_empty() {
            ready!(Pin::new(stream).poll_read(cx, &mut read))?;
            self.closed = read.filled().is_empty();
            read.filled()
        } else {
            &rest
        };
        if let Some((marker, taken)) = scanner.feed(input, passed) {
            self.pending_marker = Some(marker);
            self.rest = input[taken..].to_vec();
        }
        Poll::Ready(Ok(()))
    }
}

/// The part of the stream that belongs to one connection. It ends where the next marker begins.
#[derive(Debug)]
pub(super) struct Session<S>(Arc<Mutex<Inner<S>>>);

impl<S> Session<S> {
    pub(super) fn new(link: &SharedStream<S>) -> Self {
        Self(Arc::clone(&link.0))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Session<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = lock(&self.0);
        loop {
            let waiting = &inner.passed[inner.position..];
            let count = waiting.len().min(out.remaining());
            if count > 0 || out.remaining() == 0 {
                out.put_slice(&waiting[..count]);
                inner.position += count;
                return Poll::Ready(Ok(()));
            }
            if inner.pending_marker.is_some() || inner.closed {
                return Poll::Ready(Ok(()));
            }
            ready!(inner.poll_fill(cx))?;
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Session<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.0).stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_flush(cx)
    }

    /// The next connection uses the same stream, so it stays open.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

/// Recovering from poisoning is sound: the next marker resynchronises the stream.
fn lock<S>(inner: &Mutex<Inner<S>>) -> MutexGuard<'_, Inner<S>> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}
