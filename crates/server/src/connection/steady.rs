//! A connection that may not stand still for ever, and whose requests are told apart.
//!
//! ```text
//! no request            idle_timeout, from the end of the last one
//! head begun            header_timeout, from its first byte (HTTP/1.1)
//! answer not taken      write_timeout: a socket that takes nothing, an HTTP/2 window that stays shut
//! ```
//!
//! The body of a request has its times where it is read. An answer that has nothing to say yet may take as long as it likes.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    framing::{Framing, POISON, Verdict},
    tempo::{Standing, Tempo},
};
use crate::limits::{Limits, Permit};

/// A connection with its times.
#[derive(Debug)]
pub(crate) struct Steady<T> {
    inner: T,
    /// `None` on HTTP/2, whose frames say themselves where they end.
    framing: Option<Framing>,
    /// Read, and not yet handed on.
    ahead: Vec<u8>,
    head_since: Option<Instant>,
    tempo: Tempo,
    limits: Arc<Limits>,
    reading: Option<Pin<Box<Sleep>>>,
    writing: Option<Pin<Box<Sleep>>>,
    _permit: Permit,
}

/// What a connection is made of.
pub(super) struct Parts<T> {
    pub(super) stream: T,
    /// What was read of it already.
    pub(super) first: Vec<u8>,
    pub(super) is_http2: bool,
    pub(super) tempo: Tempo,
    pub(super) limits: Arc<Limits>,
    pub(super) permit: Permit,
}

impl<T> Steady<T> {
    pub(super) fn new(parts: Parts<T>) -> Self {
        let Parts { stream, first, is_http2, tempo, limits, permit } = parts;
        let framing = (!is_http2).then(|| Framing::new(limits.max_header_bytes, limits.max_headers));
        Self {
            inner: stream,
            framing,
            ahead: first,
            head_since: None,
            tempo,
            limits,
            reading: None,
            writing: None,
            _permit: permit,
        }
    }

    /// Hands on what may be handed on of what was read ahead.
    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) {
        let shown = self.ahead.len().min(buf.remaining());
        let verdict = match &mut self.framing {
            Some(framing) => framing.next(&self.ahead[..shown]),
            None => Verdict::Pass(shown),
        };
        match verdict {
            Verdict::Pass(length) => {
                buf.put_slice(&self.ahead[..length]);
                self.ahead.drain(..length);
            }
            Verdict::Refuse => {
                // The library answers this and closes, and sees nothing of what came behind.
                self.ahead = POISON.to_vec();
                self.framing = None;
                let shown = POISON.len().min(buf.remaining());
                buf.put_slice(&POISON[..shown]);
                self.ahead.drain(..shown);
            }
        }
        if self.ahead.is_empty() {
            self.ahead = Vec::new();
        }
        let in_head = self.framing.as_ref().is_some_and(Framing::in_head);
        self.head_since = in_head.then(|| self.head_since.unwrap_or_else(Instant::now));
    }

    /// When silence becomes too long; `None` where it never does. The flag: or is only looked at again.
    fn deadline(&self) -> Option<(Instant, bool)> {
        if let Some(since) = self.head_since {
            return Some((since + self.limits.header_timeout, true));
        }
        match self.tempo.standing() {
            Standing::Quiet(since) => Some((since + self.limits.idle_timeout, true)),
            // Where the socket itself takes nothing, the write says so.
            Standing::Busy(_) if self.framing.is_some() => None,
            Standing::Busy(Some(since)) => Some((since + self.limits.write_timeout, true)),
            Standing::Busy(None) => Some((Instant::now() + self.limits.write_timeout, false)),
            Standing::Upgraded => None,
        }
    }

    /// Ready with an error once the silence is too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let Some((deadline, is_end)) = self.deadline() else { return Poll::Pending };
            let timer = self.reading.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            timer.as_mut().reset(deadline);
            ready!(timer.as_mut().poll(cx));
            if is_end {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Steady<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ahead.is_empty() {
            let before = buf.filled().len();
            match Pin::new(&mut this.inner).poll_read(cx, buf) {
                Poll::Pending => return this.poll_silence(cx).map(Err),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            if buf.filled().len() == before || this.framing.is_none() {
                return Poll::Ready(Ok(()));
            }
            this.ahead.extend_from_slice(&buf.filled()[before..]);
            buf.set_filled(before);
        }
        this.hand_on(buf);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> Steady<T> {
    /// Goes on with a write, unless the other end has taken nothing for too long.
    fn poll_writing<R>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if let Poll::Ready(outcome) = write(Pin::new(&mut self.inner), cx) {
            self.writing = None;
            return Poll::Ready(outcome);
        }
        let limit = self.limits.write_timeout;
        let timer = self.writing.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Steady<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |inner, cx| inner.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writing(cx, |inner, cx| inner.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writing(cx, |inner, cx| inner.poll_shutdown(cx))
    }
}
