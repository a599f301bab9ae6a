//! Where an HTTP/1.1 request begins and ends, looked at before the HTTP library sees it.
//!
//! That library is lenient: it takes lines that end with a bare line feed, and a length beside chunks. A proxy in front of us
//! that reads such a request otherwise could be made to smuggle a second one past its rules. So each head is looked at, and
//! what two readers may understand in two ways is refused. The library still decides what a request is; this only takes away.

use std::str::from_utf8;

use httparse::{Header, Request, Status};

/// What follows a refused beginning, for the library to answer with 400: no head has such a byte in it.
pub(super) const POISON: &[u8] = b"\0\r\n\r\n";

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    at: At,
    /// The head so far.
    head: Vec<u8>,
    longest_head: usize,
    most_headers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Head,
    /// So many bytes of a body are still to come.
    Body(u64),
    /// Chunks, another protocol, or what the library refuses by itself: the connection takes no other request.
    Rest,
    Refused,
}

/// What may be handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// So many bytes, at least one where there is any.
    Pass(usize),
    /// None, and nothing any more.
    Refuse,
}

impl Framing {
    pub(super) fn new(longest_head: usize, most_headers: usize) -> Self {
        Self { at: At::Head, head: Vec::new(), longest_head, most_headers }
    }

    /// Whether a head has begun and is not complete.
    pub(super) fn in_head(&self) -> bool {
        self.at == At::Head && !self.head.is_empty()
    }

    /// How much of what came may be handed on now. The rest is to be shown again.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Verdict {
        match self.at {
            At::Head => self.follow_head(bytes),
            At::Body(left) => {
                let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - part as u64;
                self.at = if left == 0 { At::Head } else { At::Body(left) };
                Verdict::Pass(part)
            }
            At::Rest => Verdict::Pass(bytes.len()),
            At::Refused => Verdict::Refuse,
        }
    }

    fn follow_head(&mut self, bytes: &[u8]) -> Verdict {
        for (index, byte) in bytes.iter().enumerate() {
            let after_return = self.head.last() == Some(&b'\r');
            if after_return != (*byte == b'\n') {
                return self.refuse();
            }
            self.head.push(*byte);
            // Empty lines before a request are no part of it.
            if self.head == b"\r\n" {
                self.head.clear();
            }
            if self.head.ends_with(b"\r\n\r\n") {
                let Some(at) = self.judge() else { return self.refuse() };
                self.at = at;
                self.head.clear();
                return Verdict::Pass(index + 1);
            }
        }
        if self.head.len() > self.longest_head {
            self.at = At::Rest;
            self.head = Vec::new();
        }
        Verdict::Pass(bytes.len())
    }

    fn refuse(&mut self) -> Verdict {
        self.at = At::Refused;
        Verdict::Refuse
    }

    /// What comes after a complete head; `None` where that is open to interpretation.
    fn judge(&self) -> Option<At> {
        let mut headers = vec![httparse::EMPTY_HEADER; self.most_headers];
        let mut request = Request::new(&mut headers);
        // Whatever cannot be read, or has too many headers, the library refuses in its own words.
        let Ok(Status::Complete(_)) = request.parse(&self.head) else { return Some(At::Rest) };
        let values = |name: &str| values(request.headers, name);
        let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
        let upgrades = request.method == Some("CONNECT") || !values("upgrade").is_empty();
        if values("host").len() > 1 {
            return None;
        }
        match (&lengths[..], &codings[..]) {
            ([], []) if upgrades => Some(At::Rest),
            ([], []) => Some(At::Head),
            ([length], []) => {
                let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
                let length: u64 = from_utf8(length).ok().filter(|_| digits)?.parse().ok()?;
                Some(if upgrades {
                    At::Rest
                } else if length == 0 {
                    At::Head
                } else {
                    At::Body(length)
                })
            }
            ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Some(At::Rest),
            _ => None,
        }
    }
}

fn values<'a>(headers: &[Header<'a>], name: &str) -> Vec<&'a [u8]> {
    headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is handed on of these bytes, piece by piece, and whether all of it is.
    fn pieces(bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
        let mut framing = Framing::new(4096, 16);
        let (mut pieces, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            match framing.next(rest) {
                Verdict::Refuse => return (pieces, false),
                Verdict::Pass(length) => {
                    assert!(length > 0);
                    pieces.push(rest[..length].to_vec());
                    rest = &rest[length..];
                }
            }
        }
        (pieces, true)
    }

    #[test]
    fn requests_one_behind_the_other_are_told_apart() {
        let (get, post) =
            ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n");
        let all = format!("{get}{post}a\nb\nc\r\n{get}");
        let (pieces, passed) = pieces(all.as_bytes());
        assert!(passed);
        let pieces: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
        assert_eq!(pieces, [get, post, "a\nb\nc", &format!("\r\n{get}")]);
    }

    #[test]
    fn what_may_be_read_in_two_ways_is_refused() {
        for head in [
            "GET / HTTP/1.1\nhost: x\n\n",
            "GET / HTTP/1.1\r\nhost: x\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\rx: y\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            "GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
            "GET / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "GET / HTTP/1.1\r\ntransfer-encoding: \u{b}chunked\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: +1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 1, 1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length:\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        ] {
            let second = format!("{head}GET /second HTTP/1.1\r\n\r\n");
            let (pieces, passed) = pieces(second.as_bytes());
            let unreadable = head.contains('\u{b}');
            assert!(!passed || unreadable, "{head:?}: {pieces:?}");
        }
    }

    #[test]
    fn nothing_behind_chunks_or_another_protocol_is_looked_at() {
        for head in [
            "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
            "CONNECT x:1 HTTP/1.1\r\n\r\n",
        ] {
            let (pieces, passed) = pieces(format!("{head}1\n2\n\n").as_bytes());
            assert!(passed && pieces.len() == 2, "{head:?}: {pieces:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it_however_they_are_cut(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1_usize..40) {
            let mut whole = Framing::new(64, 4);
            let mut cut_up = Framing::new(64, 4);
            for part in bytes.chunks(cut) {
                let mut rest = part;
                while let Verdict::Pass(length) = cut_up.next(rest) {
                    rest = &rest[length..];
                    if rest.is_empty() { break; }
                    prop_assert!(length > 0);
                }
            }
            let mut rest = &bytes[..];
            while let Verdict::Pass(length) = whole.next(rest) {
                rest = &rest[length..];
                if rest.is_empty() { break; }
                prop_assert!(length > 0);
            }
        }

        #[test]
        fn a_head_is_judged_the_same_however_it_is_cut(cut in 1_usize..80) {
            let bytes = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n";
            let mut framing = Framing::new(4096, 16);
            for part in bytes.chunks(cut) {
                let mut rest = part;
                while !rest.is_empty() {
                    let Verdict::Pass(length) = framing.next(rest) else { panic!("refused") };
                    rest = &rest[length..];
                }
            }
            prop_assert_eq!(framing.at, At::Head);
            prop_assert!(!framing.in_head());
        }
    }
}
