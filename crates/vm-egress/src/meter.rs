//! A stream that counts the bytes that are read from it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

pub(crate) struct Metered<'a> {
    pub(crate) stream: &'a mut TcpStream,
    /// Bytes of all connections of a VM.
    pub(crate) total: Arc<AtomicU64>,
    /// Bytes of this connection, in both directions.
    pub(crate) moved: Arc<AtomicU64>,
}

impl AsyncRead for Metered<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut *self.stream).poll_read(cx, buffer);
        let read = (buffer.filled().len() - before) as u64;
        self.total.fetch_add(read, Ordering::Relaxed);
        self.moved.fetch_add(read, Ordering::Relaxed);
        outcome
    }
}

impl AsyncWrite for Metered<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}
