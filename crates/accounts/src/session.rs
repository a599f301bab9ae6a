//! Browser sessions: their token, its hash, and when they end.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use skep_api::keys::Key;

use crate::{
    Error,
    secret::{hex, is_hex},
};

const HEX_DIGITS: usize = 64;
/// The maximum duration of a session.
const MAX_SESSION_DURATION: SignedDuration = SignedDuration::from_hours(12);

/// The token of a browser session: 64 hexadecimal digits. Only [`SessionToken::expose`] reveals it.
#[derive(Clone)]
pub struct SessionToken(String);

impl SessionToken {
    /// Creates a token from 32 bytes of a cryptographic random number generator.
    pub fn from_random(random: [u8; 32]) -> Self {
        Self(hex(&random))
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
#[derive(Clone, Copy)]
pub struct SessionHash([u8; 32]);

impl SessionHash {
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SessionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionHash({}...)", hex(&self.0[..4]))
    }
}

/// When a session that begins now ends: after 12 hours, or when its key expires if that is earlier.
pub fn session_end(key: &Key, now: Timestamp) -> Timestamp {
    let latest = now.checked_add(MAX_SESSION_DURATION).unwrap_or(Timestamp::MAX);
    key.expires_at.map_or(latest, |end| end.min(latest))
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
}
