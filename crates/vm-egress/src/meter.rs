//! A stream that counts the bytes that are read from it, and reads them at the rate of its VM.

use std::{
    future::Future,
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
    time::{Sleep, sleep_until},
};

use crate::vms::Direction;

pub(crate) struct Metered<'a> {
    pub(crate) stream: &'a mut TcpStream,
    /// Of all connections of a VM.
    direction: Arc<Direction>,
    /// Until when nothing is read.
    pause: Option<Pin<Box<Sleep>>>,
    /// Bytes of this connection, in both directions.
    moved: Arc<AtomicU64>,
}

impl<'a> Metered<'a> {
    pub(crate) fn new(stream: &'a mut TcpStream, direction: &Arc<Direction>, moved: &Arc<AtomicU64>) -> Self {
        Self { stream, direction: Arc::clone(direction), pause: None, moved: Arc::clone(moved) }
    }
}

impl AsyncRead for Metered<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut *self.stream).poll_read(cx, buffer);
        let read = (buffer.filled().len() - before) as u64;
        self.direction.total.fetch_add(read, Ordering::Relaxed);
        self.moved.fetch_add(read, Ordering::Relaxed);
        if read > 0 {
            self.pause = self.direction.rate.count(read).map(|next| Box::pin(sleep_until(next)));
        }
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
