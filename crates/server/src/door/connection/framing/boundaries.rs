//! Finds where HTTP/1.1 requests begin and end.

use super::request_head::{Expected, check_beginning, check_head};
use crate::error::HeadRefusal;

/// The state of one connection between its requests and within them.
#[derive(Debug)]
pub(super) struct RequestBoundaries {
    expected: Expected,
    head: Vec<u8>,
    max_head_bytes: usize,
    max_headers: usize,
}

/// What to do with the next bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Pass this many of them on unchanged: they belong to a body, or are not framed.
    Pass(usize),
    /// Nothing: all of them were buffered as part of an incomplete head.
    Buffered,
    /// Pass on `head`, which the first `taken` bytes completed.
    Head {
        taken: usize,
        /// The complete head.
        head: Vec<u8>,
        /// Whether this is the connection's last request.
        is_last: bool,
    },
    /// Refuse the head. All bytes that follow are ignored.
    Refused {
        refusal: HeadRefusal,
        /// Whether the request's method is HEAD, whose answer has no body.
        is_head: bool,
    },
}

impl RequestBoundaries {
    pub(super) fn new(max_head_bytes: usize, max_headers: usize) -> Self {
        Self { expected: Expected::Head, head: Vec::new(), max_head_bytes, max_headers }
    }

    /// Whether a head has begun and is not complete.
    pub(super) fn in_head(&self) -> bool {
        !self.head.is_empty()
    }

    /// Processes the next bytes, at least one. Bytes that the step does not cover must be passed in again.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Step {
        match self.expected {
            Expected::Head => self.buffer_head(bytes),
            Expected::Body(left) => {
                let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - part as u64;
                self.expected = if left == 0 { Expected::Head } else { Expected::Body(left) };
                Step::Pass(part)
            }
            Expected::Unframed => Step::Pass(bytes.len()),
        }
    }

    fn buffer_head(&mut self, bytes: &[u8]) -> Step {
        let begins = self.head.is_empty();
        for (index, byte) in bytes.iter().enumerate() {
            let after_return = self.head.last() == Some(&b'\r');
            if after_return != (*byte == b'\n') {
                return self.refuse(HeadRefusal::Malformed);
            }
            self.head.push(*byte);
            // Empty lines before a request are skipped.
            if self.head == b"\r\n" {
                self.head.clear();
            }
            if self.head.len() > self.max_head_bytes {
                return self.refuse(self.too_long());
            }
            if self.head.ends_with(b"\r\n\r\n") {
                return self.complete(index + 1);
            }
        }
        // Only for the first bytes of a head, so that a head that arrives byte by byte is not parsed for each byte.
        if begins && let Err(refusal) = check_beginning(&self.head, self.max_headers) {
            return self.refuse(refusal);
        }
        Step::Buffered
    }

    fn complete(&mut self, taken: usize) -> Step {
        match check_head(&self.head, self.max_headers) {
            Ok(after) => {
                self.expected = after;
                let head = std::mem::take(&mut self.head);
                Step::Head { taken, head, is_last: after == Expected::Unframed }
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn too_long(&self) -> HeadRefusal {
        if self.head.contains(&b'\n') { HeadRefusal::HeadersTooLarge } else { HeadRefusal::TargetTooLong }
    }

    fn refuse(&self, refusal: HeadRefusal) -> Step {
        Step::Refused { refusal, is_head: self.head.starts_with(b"HEAD ") }
    }
}
