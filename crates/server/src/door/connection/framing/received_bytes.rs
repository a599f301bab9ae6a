//! What the HTTP library reads of the bytes that a connection receives.

use tokio::io::ReadBuf;

use super::boundaries::{RequestBoundaries, Step};
use crate::door::{
    connection::exchanges::{Exchanges, LastReason},
    limits::Limits,
};

/// The request that the HTTP library reads in place of a refused head. [`Exchanges`] records its number, so a client
/// that sends the same bytes is answered as usual.
const SUBSTITUTE: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
/// The substitute for a refused HEAD request, whose answer has no body.
const SUBSTITUTE_HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// The received bytes of one connection, and how they are passed on to the HTTP library.
#[derive(Debug)]
pub(in crate::door::connection) struct ReceivedBytes {
    protocol: Protocol,
    /// Bytes that were read and not yet processed.
    unprocessed: Vec<u8>,
    /// The rest of a complete head that is not yet passed on.
    head: Vec<u8>,
    head_count: u64,
    exchanges: Exchanges,
}

#[derive(Debug)]
enum Protocol {
    Http1(RequestBoundaries),
    /// A head was refused: nothing more is passed on.
    Refused,
    /// Passed on unchanged: HTTP/2 has unambiguous frames.
    Http2,
}

/// How many bytes [`ReceivedBytes::process`] consumed.
struct Consumed {
    /// Number of leading bytes to pass on.
    passed_on: usize,
    /// Number of following bytes that were buffered or dropped.
    swallowed: usize,
}

impl ReceivedBytes {
    /// Those of a connection with HTTP/1.1, which begin with `first`.
    pub(in crate::door::connection) fn http1(first: Vec<u8>, limits: &Limits, exchanges: Exchanges) -> Self {
        let boundaries = RequestBoundaries::new(limits.max_header_bytes, limits.max_headers);
        Self::new(Protocol::Http1(boundaries), first, exchanges)
    }

    /// Those of a connection with HTTP/2, which begin with `first`.
    pub(in crate::door::connection) fn http2(first: Vec<u8>, exchanges: Exchanges) -> Self {
        Self::new(Protocol::Http2, first, exchanges)
    }

    fn new(protocol: Protocol, first: Vec<u8>, exchanges: Exchanges) -> Self {
        Self { protocol, unprocessed: first, head: Vec::new(), head_count: 0, exchanges }
    }

    pub(in crate::door::connection) fn is_http2(&self) -> bool {
        matches!(self.protocol, Protocol::Http2)
    }

    /// Whether a head was refused, so that nothing more of the connection is read.
    pub(in crate::door::connection) fn is_refused(&self) -> bool {
        matches!(self.protocol, Protocol::Refused)
    }

    /// Whether a head has begun and is not complete.
    pub(in crate::door::connection) fn in_head(&self) -> bool {
        matches!(&self.protocol, Protocol::Http1(boundaries) if boundaries.in_head())
    }

    /// Passes on what is possible of the bytes that were read before. Returns whether there were any.
    pub(in crate::door::connection) fn pass_buffered(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        while self.head.is_empty() && !self.unprocessed.is_empty() {
            let mut unseen = std::mem::take(&mut self.unprocessed);
            let shown = unseen.len().min(buf.remaining());
            let passed = self.process(&unseen[..shown]);
            buf.put_slice(&unseen[..passed.passed_on]);
            unseen.drain(..passed.passed_on + passed.swallowed);
            // An empty buffer is dropped to free its memory.
            if !unseen.is_empty() && !self.is_refused() {
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

    /// Processes the bytes of `buf` from `start` on, which were just read, and leaves in it those that are passed on now. Returns
    /// whether there are any.
    pub(in crate::door::connection) fn retain_passed(&mut self, buf: &mut ReadBuf<'_>, start: usize) -> bool {
        let passed = self.process(&buf.filled()[start..]);
        let end = start + passed.passed_on;
        if !self.is_refused() {
            self.unprocessed.extend_from_slice(&buf.filled()[end + passed.swallowed..]);
        }
        buf.set_filled(end);
        passed.passed_on > 0
    }

    /// Processes received bytes, at least one.
    fn process(&mut self, bytes: &[u8]) -> Consumed {
        let Protocol::Http1(boundaries) = &mut self.protocol else {
            return Consumed { passed_on: bytes.len(), swallowed: 0 };
        };
        match boundaries.next(bytes) {
            Step::Pass(length) => Consumed { passed_on: length, swallowed: 0 },
            Step::Buffered => Consumed { passed_on: 0, swallowed: bytes.len() },
            Step::Head { taken, head, is_last } => {
                self.head_count += 1;
                self.head = head;
                if is_last {
                    self.exchanges.set_last(self.head_count, LastReason::Unframed);
                }
                Consumed { passed_on: 0, swallowed: taken }
            }
            Step::Refused { refusal, is_head } => {
                self.head_count += 1;
                self.head = if is_head { SUBSTITUTE_HEAD } else { SUBSTITUTE }.to_vec();
                self.exchanges.set_last(self.head_count, LastReason::Refused(refusal));
                self.protocol = Protocol::Refused;
                Consumed { passed_on: 0, swallowed: bytes.len() }
            }
        }
    }
}
