//! The id and the arrival of a request, and the headers that every answer has.

use std::{sync::Arc, time::Instant};

use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use skep_accounts::redact_keys;
use ulid::Ulid;

/// The header with the request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header with the version of the API.
pub(crate) const SKEP_VERSION: HeaderName = HeaderName::from_static("skep-version");
/// The version of the API. Additions do not change it.
pub const API_VERSION: &str = "1";

const MAX_ID_LENGTH: usize = 128;

/// The id of a request: the caller's where that is printable, else a new one.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
        match given.filter(|text| is_printable(text)) {
            Some(text) => Self(text.into()),
            None => Self(Ulid::generate().to_string().to_ascii_lowercase().into()),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_printable(text: &str) -> bool {
    // An id is logged and stored with events, which must never hold a key.
    redact_keys(text) == text
        && (1..=MAX_ID_LENGTH).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Monotonic, for durations.
    pub monotonic: Instant,
    pub wall: Timestamp,
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn id_of(value: &'static [u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn a_printable_id_of_the_caller_is_used() {
        assert_eq!(id_of(b"deploy-7.A_z"), "deploy-7.A_z");
        for wrong in [&b""[..], b"two words", b"a\"b", b"\xff", &[b'a'; 129]] {
            let made = id_of(wrong);
            assert_eq!(made.len(), 26, "{made}");
        }
        assert_eq!(id_of(&[b'a'; 128]).len(), 128);
    }
}
