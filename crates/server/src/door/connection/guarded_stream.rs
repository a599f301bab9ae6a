//! The stream of a connection, which enforces timeouts, passes received bytes through the framing of HTTP/1.1 requests, and
//! closes so that the last answer arrives.
//!
//! ```text
//! no request            idle_timeout, from the end of the last one
//! incomplete head       header_timeout, from its first byte (HTTP/1.1)
//! answer not taken      write_timeout: a full socket buffer, or an exhausted HTTP/2 window
//! ```
//!
//! The timeouts of a request's body apply where the body is read. An answer that sends nothing yet has no time limit
//! here.
//!
//! Written bytes are not inspected, because an answer may hold any bytes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    exchanges::{Activity, Exchanges},
    framing::ReceivedBytes,
    lingering_close::LingeringClose,
};
use crate::door::limits::{Limits, Permit};

/// The stream of a connection, with its timeouts and framing checks.
#[derive(Debug)]
pub(crate) struct GuardedStream<T> {
    inner: T,
    received: ReceivedBytes,
    head_since: Option<Instant>,
    exchanges: Exchanges,
    limits: Arc<Limits>,
    read_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    closing: Closing,
    _permits: (Permit, Option<Permit>),
}

/// The progress of closing a connection.
#[derive(Debug)]
enum Closing {
    Open,
    /// The write side is shut down; received data is discarded.
    Discarding(LingeringClose),
    Done,
}

/// The arguments of [`GuardedStream::new`].
pub(super) struct Parts<T> {
    pub(super) stream: T,
    /// Bytes that were already read from the stream.
    pub(super) first: Vec<u8>,
    pub(super) is_http2: bool,
    pub(super) exchanges: Exchanges,
    pub(super) limits: Arc<Limits>,
    /// The permit of the connection, and that of an HTTP/2 connection.
    pub(super) permits: (Permit, Option<Permit>),
}

impl<T> GuardedStream<T> {
    pub(super) fn new(parts: Parts<T>) -> Self {
        let Parts { stream, first, is_http2, exchanges, limits, permits } = parts;
        let received = if is_http2 {
            ReceivedBytes::http2(first, exchanges.clone())
        } else {
            ReceivedBytes::http1(first, &limits, exchanges.clone())
        };
        Self {
            inner: stream,
            received,
            head_since: None,
            exchanges,
            limits,
            read_timer: None,
            write_timer: None,
            closing: Closing::Open,
            _permits: permits,
        }
    }

    /// Starts the timeout of a head that has begun, and ends that of a complete one.
    fn update_head_timeout(&mut self) {
        self.head_since = self.received.in_head().then(|| self.head_since.unwrap_or_else(Instant::now));
    }

    /// When the current timeout ends; `None` where there is none. The flag is false where the state is only checked
    /// again then.
    fn deadline(&self) -> Option<(Instant, bool)> {
        if let Some(since) = self.head_since {
            return Some((since + self.limits.header_timeout, true));
        }
        match self.exchanges.activity() {
            Activity::Idle(since) => Some((since + self.limits.idle_timeout, true)),
            // On HTTP/1.1, a client that does not read its answer blocks the write, which has its own timeout. The state is checked
            // again because nothing polls this stream at the end of the request.
            Activity::Busy(_) if !self.received.is_http2() => {
                Some((Instant::now() + self.limits.idle_timeout, false))
            }
            Activity::Busy(Some(since)) => Some((since + self.limits.write_timeout, true)),
            Activity::Busy(None) => Some((Instant::now() + self.limits.write_timeout, false)),
            Activity::Upgraded => None,
        }
    }

    /// Ready with an error once the current timeout has passed.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let Some((deadline, is_final)) = self.deadline() else { return Poll::Pending };
            let timer = self.read_timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            timer.as_mut().reset(deadline);
            ready!(timer.as_mut().poll(cx));
            if is_final {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GuardedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while buf.remaining() > 0 {
            let passed = this.received.pass_buffered(buf);
            this.update_head_timeout();
            if passed {
                break;
            }
            if this.received.is_refused() {
                return this.poll_timeout(cx).map(Err);
            }
            let start = buf.filled().len();
            match Pin::new(&mut this.inner).poll_read(cx, buf) {
                Poll::Pending => return this.poll_timeout(cx).map(Err),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            if buf.filled().len() == start {
                break;
            }
            let passed = this.received.retain_passed(buf, start);
            this.update_head_timeout();
            if passed {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> GuardedStream<T> {
    /// Polls a write, and fails once the peer has accepted nothing for the write timeout.
    fn poll_write_with_timeout<R>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if let Poll::Ready(outcome) = write(Pin::new(&mut self.inner), cx) {
            self.write_timer = None;
            return Poll::Ready(outcome);
        }
        let limit = self.limits.write_timeout;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GuardedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with_timeout(cx, |inner, cx| inner.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with_timeout(cx, |inner, cx| inner.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_with_timeout(cx, |inner, cx| inner.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if matches!(this.closing, Closing::Open) {
            ready!(this.poll_write_with_timeout(cx, |inner, cx| inner.poll_shutdown(cx)))?;
            this.closing = if this.exchanges.is_unread() {
                Closing::Discarding(LingeringClose::begin())
            } else {
                Closing::Done
            };
        }
        if let Closing::Discarding(linger) = &mut this.closing {
            ready!(linger.poll_discard(Pin::new(&mut this.inner), cx));
            this.closing = Closing::Done;
        }
        Poll::Ready(Ok(()))
    }
}
