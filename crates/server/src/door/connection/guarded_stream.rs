//! The stream of a connection, which enforces timeouts, checks the framing of HTTP/1.1 requests, and closes so that the
//! last answer arrives.
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
//! In place of a refused head, the HTTP library reads a substitute request, which the router answers with the refusal.
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
    exchanges::{Activity, Exchanges, LastReason},
    framing::{Framing, Step},
    lingering_close::LingeringClose,
};
use crate::door::limits::{Limits, Permit};

/// The request that the HTTP library reads in place of a refused head. [`Exchanges`] records its number, so a client
/// that sends the same bytes is answered as usual.
const SUBSTITUTE: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
/// The substitute for a refused HEAD request, whose answer has no body.
const SUBSTITUTE_HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// The stream of a connection, with its timeouts and framing checks.
#[derive(Debug)]
pub(crate) struct GuardedStream<T> {
    inner: T,
    protocol: Protocol,
    /// Bytes that were read and not yet processed.
    unprocessed: Vec<u8>,
    /// The rest of a complete head that is not yet passed on.
    head: Vec<u8>,
    head_count: u64,
    head_since: Option<Instant>,
    exchanges: Exchanges,
    limits: Arc<Limits>,
    read_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    closing: Closing,
    _permits: (Permit, Option<Permit>),
}

/// How received bytes are passed on.
#[derive(Debug)]
enum Protocol {
    Http1(Framing),
    /// A head was refused: nothing more is passed on.
    Refused,
    /// Passed on unchanged: HTTP/2 has unambiguous frames.
    Http2,
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
        let protocol = if is_http2 {
            Protocol::Http2
        } else {
            Protocol::Http1(Framing::new(limits.max_header_bytes, limits.max_headers))
        };
        Self {
            inner: stream,
            protocol,
            unprocessed: first,
            head: Vec::new(),
            head_count: 0,
            head_since: None,
            exchanges,
            limits,
            read_timer: None,
            write_timer: None,
            closing: Closing::Open,
            _permits: permits,
        }
    }

    /// Passes on what is possible of the bytes that were read before. Returns whether there were any.
    fn pass_buffered(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        while self.head.is_empty() && !self.unprocessed.is_empty() {
            let mut unseen = std::mem::take(&mut self.unprocessed);
            let shown = unseen.len().min(buf.remaining());
            let passed = self.process(&unseen[..shown]);
            buf.put_slice(&unseen[..passed.passed_on]);
            unseen.drain(..passed.passed_on + passed.swallowed);
            // An empty buffer is dropped to free its memory.
            if !unseen.is_empty() && !matches!(self.protocol, Protocol::Refused) {
                self.unprocessed = unseen;
            }
            if passed.passed_on > 0 {
                return true;
            }
        }
        let part = self.head.len().min(buf.remaining());
        buf.put_slice(&self.head[..part]);
        self.head.drain(..part);
        if self.head.is_empty() {
            self.head = Vec::new();
        }
        part > 0
    }

    /// Processes received bytes, at least one.
    fn process(&mut self, bytes: &[u8]) -> Consumed {
        let Protocol::Http1(framing) = &mut self.protocol else {
            return Consumed { passed_on: bytes.len(), swallowed: 0 };
        };
        let step = framing.next(bytes);
        let in_head = framing.in_head();
        self.head_since = in_head.then(|| self.head_since.unwrap_or_else(Instant::now));
        match step {
            Step::Pass(length) => return Consumed { passed_on: length, swallowed: 0 },
            Step::Buffered => return Consumed { passed_on: 0, swallowed: bytes.len() },
            Step::Head { taken, head, is_last } => {
                self.head_count += 1;
                self.head = head;
                if is_last {
                    self.exchanges.set_last(self.head_count, LastReason::Unframed);
                }
                return Consumed { passed_on: 0, swallowed: taken };
            }
            Step::Refused { refusal, is_head } => {
                self.head_count += 1;
                self.head_since = None;
                self.head = if is_head { SUBSTITUTE_HEAD } else { SUBSTITUTE }.to_vec();
                self.exchanges.set_last(self.head_count, LastReason::Refused(refusal));
            }
        }
        self.protocol = Protocol::Refused;
        Consumed { passed_on: 0, swallowed: bytes.len() }
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
            Activity::Busy(_) if !matches!(self.protocol, Protocol::Http2) => {
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

/// How many bytes [`GuardedStream::process`] consumed.
struct Consumed {
    /// Number of leading bytes to pass on.
    passed_on: usize,
    /// Number of following bytes that were buffered or dropped.
    swallowed: usize,
}

impl<T: AsyncRead + Unpin> AsyncRead for GuardedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while buf.remaining() > 0 && !this.pass_buffered(buf) {
            if matches!(this.protocol, Protocol::Refused) {
                return this.poll_timeout(cx).map(Err);
            }
            let before = buf.filled().len();
            match Pin::new(&mut this.inner).poll_read(cx, buf) {
                Poll::Pending => return this.poll_timeout(cx).map(Err),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            if buf.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            let passed = this.process(&buf.filled()[before..]);
            let seen = before + passed.passed_on;
            if !matches!(this.protocol, Protocol::Refused) {
                this.unprocessed.extend_from_slice(&buf.filled()[seen + passed.swallowed..]);
            }
            buf.set_filled(seen);
            if passed.passed_on > 0 {
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
