//! Where an HTTP/1.1 request begins and ends, looked at before the HTTP library sees it.
//!
//! That library is lenient: it takes lines that end with a bare line feed, and a length beside chunks. A proxy in front of us
//! that reads such a request otherwise could be made to smuggle a second one past its rules. So each head is kept back until
//! it is complete, and one that two readers may understand in two ways is refused. The library still decides what a request
//! is; this only takes away.

use super::head::{After, check_beginning, judge};
use crate::error::HeadRefusal;

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    after: After,
    /// The head so far.
    head: Vec<u8>,
    longest_head: usize,
    most_headers: usize,
}

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many of them are handed on as they are: a body, or what is not framed.
    Pass(usize),
    /// All of them belong to a head that is not complete yet, and were kept.
    Kept,
    /// The first of them, so many, complete a head.
    Head {
        taken: usize,
        /// To be handed on whole.
        head: Vec<u8>,
        /// Whether the connection takes no other request.
        is_last: bool,
    },
    /// They make a head that is refused. Nothing that follows is looked at.
    Refused {
        refusal: HeadRefusal,
        /// Whether the request's method is HEAD, whose answer has no body.
        is_head: bool,
    },
}

impl Framing {
    pub(super) fn new(longest_head: usize, most_headers: usize) -> Self {
        Self { after: After::Head, head: Vec::new(), longest_head, most_headers }
    }

    /// Whether a head has begun and is not complete.
    pub(super) fn in_head(&self) -> bool {
        !self.head.is_empty()
    }

    /// What the next bytes are, at least one. Those that were neither kept nor taken are to be shown again.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Step {
        match self.after {
            After::Head => self.follow_head(bytes),
            After::Body(left) => {
                let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - part as u64;
                self.after = if left == 0 { After::Head } else { After::Body(left) };
                Step::Pass(part)
            }
            After::Unframed => Step::Pass(bytes.len()),
        }
    }

    fn follow_head(&mut self, bytes: &[u8]) -> Step {
        let begins = self.head.is_empty();
        for (index, byte) in bytes.iter().enumerate() {
            let after_return = self.head.last() == Some(&b'\r');
            if after_return != (*byte == b'\n') {
                return self.refuse(HeadRefusal::Malformed);
            }
            self.head.push(*byte);
            // Empty lines before a request are no part of it.
            if self.head == b"\r\n" {
                self.head.clear();
            }
            if self.head.len() > self.longest_head {
                return self.refuse(self.too_long());
            }
            if self.head.ends_with(b"\r\n\r\n") {
                return self.complete(index + 1);
            }
        }
        // Once a head, so that a caller that sends it byte by byte does not have it parsed for each.
        if begins && let Err(refusal) = check_beginning(&self.head, self.most_headers) {
            return self.refuse(refusal);
        }
        Step::Kept
    }

    fn complete(&mut self, taken: usize) -> Step {
        match judge(&self.head, self.most_headers) {
            Ok(after) => {
                self.after = after;
                let head = std::mem::take(&mut self.head);
                Step::Head { taken, head, is_last: after == After::Unframed }
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

#[cfg(test)]
mod tests;
