//! Checks the head of an HTTP/1.1 request, and finds the length of the body that follows.
//!
//! The checks cover all that the HTTP library makes: that one answers an invalid head with a bare status and closes,
//! while the API promises a JSON error. A test of this folder compares the two.

use std::str::from_utf8;

use http::{Method, Uri};
use httparse::{Error, Header, Request, Status};

use crate::error::HeadRefusal;

/// The longest path and query that the HTTP library accepts, in bytes.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;
/// The longest header name that the HTTP library accepts, in bytes.
const MAX_NAME_BYTES: usize = u16::MAX as usize;
/// The largest `Content-Length` that the HTTP library accepts.
const MAX_CONTENT_LENGTH: u64 = u64::MAX - 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Head,
    /// A body of this many bytes, at least one.
    Body(u64),
    /// A chunked body or another protocol, whose end is not searched for: the connection accepts no further request.
    Unframed,
}

/// Checks a complete head and returns what follows it.
///
/// # Errors
/// The head is ambiguous, or the HTTP library would not accept it.
pub(super) fn check_head(head: &[u8], max_headers: usize) -> Result<Expected, HeadRefusal> {
    let mut headers = vec![httparse::EMPTY_HEADER; max_headers];
    let mut request = Request::new(&mut headers);
    let parsed = request.parse(head).map_err(refusal_of)?;
    if parsed != Status::Complete(head.len()) {
        return Err(HeadRefusal::Malformed);
    }
    check_request_line(&request)?;
    if request.headers.iter().any(|header| header.name.len() > MAX_NAME_BYTES) {
        return Err(HeadRefusal::HeadersTooLarge);
    }
    expected_after(&request).ok_or(HeadRefusal::Malformed)
}

/// Refuses the beginning of a head that cannot become valid.
///
/// # Errors
/// As [`check_head`].
pub(super) fn check_beginning(head: &[u8], max_headers: usize) -> Result<(), HeadRefusal> {
    let mut headers = vec![httparse::EMPTY_HEADER; max_headers];
    Request::new(&mut headers).parse(head).map(drop).map_err(refusal_of)
}

fn refusal_of(error: Error) -> HeadRefusal {
    match error {
        Error::TooManyHeaders => HeadRefusal::HeadersTooLarge,
        _ => HeadRefusal::Malformed,
    }
}

fn check_request_line(request: &Request<'_, '_>) -> Result<(), HeadRefusal> {
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(HeadRefusal::Malformed);
    };
    if target.len() > MAX_TARGET_BYTES {
        return Err(HeadRefusal::TargetTooLong);
    }
    let readable = Method::from_bytes(method.as_bytes()).is_ok() && Uri::try_from(target).is_ok();
    if readable { Ok(()) } else { Err(HeadRefusal::Malformed) }
}

/// What follows the head, by its headers; `None` where they are ambiguous.
fn expected_after(request: &Request<'_, '_>) -> Option<Expected> {
    let values = |name: &str| values(request.headers, name);
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    let upgrades = request.method == Some("CONNECT") || !values("upgrade").is_empty();
    if values("host").len() > 1 {
        return None;
    }
    let after = match (&lengths[..], &codings[..]) {
        ([], []) => Expected::Head,
        ([length], []) => match parse_length(length)? {
            0 => Expected::Head,
            length => Expected::Body(length),
        },
        // HTTP/1.0 has no chunked encoding.
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && request.version == Some(1) => {
            Expected::Unframed
        }
        _ => return None,
    };
    Some(if upgrades { Expected::Unframed } else { after })
}

fn parse_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let length = from_utf8(value).ok().filter(|_| digits)?.parse().ok()?;
    (length <= MAX_CONTENT_LENGTH).then_some(length)
}

fn values<'a>(headers: &[Header<'a>], name: &str) -> Vec<&'a [u8]> {
    headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
        .collect()
}
