//! Browser sessions: their token, its hash, and when they end.

use std::fmt;

use data_encoding::{BASE32_NOPAD, HEXLOWER};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use skep_api::keys::Key;

use crate::{Error, KeyHash, secret::is_hex};

const HEX_DIGITS: usize = 64;
/// Bytes of the digest in the name of a session host: 40 bits, eight characters of base 32.
const HOST_BYTES: usize = 5;
/// The maximum duration of a session.
const MAX_SESSION_DURATION: SignedDuration = SignedDuration::from_hours(12);
/// How long a session lasts without a request.
const MAX_IDLE_DURATION: SignedDuration = SignedDuration::from_mins(60);
/// How long a link that opens a session is valid.
const LINK_DURATION: SignedDuration = SignedDuration::from_mins(10);

/// The token of a browser session: 64 hexadecimal digits. Only [`SessionToken::expose`] reveals it.
#[derive(Clone)]
pub struct SessionToken(String);

impl SessionToken {
    /// Creates a token from 32 bytes of a cryptographic random number generator.
    pub fn from_random(random: [u8; 32]) -> Self {
        Self(HEXLOWER.encode(&random))
    }

    /// Parses a presented token. Only the form is checked.
    ///
    /// # Errors
    /// [`Error::InvalidToken`] for any other form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() == HEX_DIGITS && text.bytes().all(is_hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::InvalidToken)
        }
    }

    /// The token in clear text, for its browser.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The hash that the store keeps.
    pub fn hash(&self) -> SessionHash {
        SessionHash(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(...)")
    }
}

/// The SHA-256 hash of a session token. It is only used as a lookup key, so it needs no comparison in constant time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionHash([u8; 32]);

impl SessionHash {
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SessionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionHash({}...)", HEXLOWER.encode(&self.0[..4]))
    }
}

/// The host name of the sessions of a key on the machine of the browser: `skep-` and eight characters below `localhost`,
/// a domain that most browsers resolve to the loopback interface (RFC 6761, section 6.3).
///
/// A browser sends a cookie of `localhost` to every port, and so to any program that listens there. Without the key or its
/// stored hash, a program does not know this name, so it cannot make a browser send the cookie to it.
pub fn session_host(key: &KeyHash) -> String {
    let digest = Sha256::new().chain_update("skep session host").chain_update(key.as_bytes()).finalize();
    format!("skep-{}.localhost", BASE32_NOPAD.encode(&digest[..HOST_BYTES]).to_ascii_lowercase())
}

/// When a session that begins now ends at the latest: after 12 hours, or when its key expires if that is earlier.
pub fn session_end(key: &Key, now: Timestamp) -> Timestamp {
    end_of_key_or(key, now, MAX_SESSION_DURATION)
}

/// When a link that is created now ceases to open a session: after 10 minutes, or when its key expires if that is
/// earlier.
pub fn session_link_end(key: &Key, now: Timestamp) -> Timestamp {
    end_of_key_or(key, now, LINK_DURATION)
}

fn end_of_key_or(key: &Key, now: Timestamp, duration: SignedDuration) -> Timestamp {
    let latest = now.checked_add(duration).unwrap_or(Timestamp::MAX);
    key.expires_at.map_or(latest, |end| end.min(latest))
}

/// When a session ends unless another request uses it: 60 minutes after its last use, but not later than `expires_at`.
pub fn idle_session_end(last_used_at: Timestamp, expires_at: Timestamp) -> Timestamp {
    last_used_at.checked_add(MAX_IDLE_DURATION).unwrap_or(Timestamp::MAX).min(expires_at)
}

/// Checks that a session has not ended by its age or by a time without a request.
///
/// # Errors
/// [`Error::TokenExpired`].
pub fn check_session(last_used_at: Timestamp, expires_at: Timestamp, now: Timestamp) -> Result<(), Error> {
    if now < idle_session_end(last_used_at, expires_at) { Ok(()) } else { Err(Error::TokenExpired) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_a_token() {
        let token = SessionToken::from_random([0xab; 32]);
        let text = token.expose();
        assert_eq!(SessionToken::parse(text).unwrap().hash().as_bytes(), token.hash().as_bytes());
        for wrong in ["", &text[1..], &format!("{text}0"), &text.to_uppercase(), &format!("{}é", &text[2..])]
        {
            assert_eq!(SessionToken::parse(wrong).unwrap_err(), Error::InvalidToken, "{wrong:?}");
        }
        assert!(!format!("{token:?}").contains("ab"));
    }

    #[test]
    fn each_key_has_a_session_host_of_its_own() {
        let [one, other] = [1, 2].map(|byte| session_host(&KeyHash::from_bytes([byte; 32])));
        assert_ne!(one, other);
        assert_eq!(one, session_host(&KeyHash::from_bytes([1; 32])), "the same after a restart");
        for host in [one, other] {
            let name = host.strip_prefix("skep-").and_then(|rest| rest.strip_suffix(".localhost")).unwrap();
            assert_eq!(name.len(), 8, "{host}");
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')), "{host}");
        }
    }

    #[test]
    fn a_session_ends_an_hour_after_its_last_use_or_at_its_end() {
        let minute = |number: i64| Timestamp::from_second(number * 60).unwrap();
        for (last_used, ends, now, valid) in [
            (0, 720, 59, true),
            (0, 720, 60, false),
            (700, 720, 719, true),
            (700, 720, 720, false),
            (0, 30, 29, true),
            (0, 30, 30, false),
        ] {
            let checked = check_session(minute(last_used), minute(ends), minute(now));
            assert_eq!(checked.is_ok(), valid, "{last_used} {ends} {now}");
        }
        assert!(
            check_session(minute(0), minute(720), minute(-5)).is_ok(),
            "a clock that was set back ends nothing"
        );
    }
}
