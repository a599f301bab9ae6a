//! Keys: their form, their prefix and their hash.

use std::{borrow::Cow, fmt, hash, str::FromStr};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skep_api::Environment;
use subtle::ConstantTimeEq;

use crate::Error;

const KEY_START: &str = "sk-skep-";
const HEX_DIGITS: usize = 64;
const PREFIX_HEX_DIGITS: usize = 8;

/// A key in clear text: `sk-skep-{environment}-{64 hex digits}`.
///
/// Only [`KeySecret::expose`] reveals it, so that it does not get into logs by accident.
#[derive(Clone)]
pub struct KeySecret {
    text: String,
    environment: Environment,
}

impl KeySecret {
    /// Creates a key from 32 bytes of a cryptographic random number generator.
    pub fn from_random(environment: Environment, random: [u8; 32]) -> Self {
        Self { text: format!("{KEY_START}{environment}-{}", HEXLOWER.encode(&random)), environment }
    }

    /// Parses a presented key. Only the form is checked.
    ///
    /// # Errors
    /// [`Error::InvalidToken`] for any other form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let rest = text.strip_prefix(KEY_START).ok_or(Error::InvalidToken)?;
        let (environment, digits) = rest.split_once('-').ok_or(Error::InvalidToken)?;
        let environment = environment.parse().map_err(|_| Error::InvalidToken)?;
        if digits.len() != HEX_DIGITS || !digits.bytes().all(is_hex) {
            return Err(Error::InvalidToken);
        }
        Ok(Self { text: text.to_owned(), environment })
    }

    /// The key in clear text, for its owner.
    pub fn expose(&self) -> &str {
        &self.text
    }

    pub fn environment(&self) -> Environment {
        self.environment
    }

    /// The key up to its 8th hexadecimal digit: enough to identify a key, far too little to guess it.
    pub fn prefix(&self) -> &str {
        &self.text[..self.text.len() - HEX_DIGITS + PREFIX_HEX_DIGITS]
    }

    /// The hash that the store keeps.
    pub fn hash(&self) -> KeyHash {
        KeyHash(Sha256::digest(self.text.as_bytes()).into())
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySecret({}...)", self.prefix())
    }
}

/// Truncates every key in a text to its prefix. Callers paste keys into all kinds of fields, and what they send may
/// be echoed, logged and stored.
pub fn redact_keys(text: &str) -> Cow<'_, str> {
    let mut clean = String::new();
    let mut rest = text;
    while let Some((before, secret, after)) = first_key(rest) {
        clean.push_str(before);
        clean.push_str(secret.prefix());
        clean.push_str("...");
        rest = after;
    }
    if clean.is_empty() && rest.len() == text.len() {
        return Cow::Borrowed(text);
    }
    clean.push_str(rest);
    Cow::Owned(clean)
}

/// The first key in a text, with the text before and after it.
fn first_key(text: &str) -> Option<(&str, KeySecret, &str)> {
    text.match_indices(KEY_START).find_map(|(at, _)| {
        let environment = text[at + KEY_START.len()..].find('-')?;
        let end = at + KEY_START.len() + environment + 1 + HEX_DIGITS;
        let secret = KeySecret::parse(text.get(at..end)?).ok()?;
        Some((&text[..at], secret, &text[end..]))
    })
}

/// The SHA-256 hash of a key. Comparison takes constant time.
#[derive(Clone, Copy, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl hash::Hash for KeyHash {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({}...)", HEXLOWER.encode(&self.0[..4]))
    }
}

impl FromStr for KeyHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(Error::NotAHash { bytes: text.len() })
    }
}

// Lower case only, so that each key has one spelling and one hash.
pub(crate) const fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGITS: &str = "3f9a1c20e4b5d6a7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f";

    #[test]
    fn every_key_in_a_text_is_redacted() {
        let key = format!("sk-skep-prod-{DIGITS}");
        let cut = "sk-skep-prod-3f9a1c20...";
        for (text, expected) in [
            (key.clone(), cut.to_owned()),
            (format!("no key `{key}`; ü"), format!("no key `{cut}`; ü")),
            (format!("{key}{key}"), format!("{cut}{cut}")),
            (format!("sk-skep-sk-skep-{key}00"), format!("sk-skep-sk-skep-{cut}00")),
        ] {
            assert_eq!(redact_keys(&text), expected);
        }
        for text in ["", "sk-skep-", "sk-skep-prod", "sk-skep-prod-3f9aü", "x sk-skep-prod-3f9a1c20... y"] {
            assert!(matches!(redact_keys(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn only_the_exact_form_is_a_key() {
        let good = format!("sk-skep-prod-{DIGITS}");
        assert_eq!(KeySecret::parse(&good).unwrap().prefix(), "sk-skep-prod-3f9a1c20");
        for wrong in [
            String::new(),
            DIGITS.to_owned(),
            format!("sk-skep-{DIGITS}"),
            format!("sk-skep--{DIGITS}"),
            format!("sk-skep-production-{DIGITS}"),
            format!("sk-skep-Prod-{DIGITS}"),
            format!("sk-other-prod-{DIGITS}"),
            format!("SK-skep-prod-{DIGITS}"),
            format!("sk-skep-prod-{}", DIGITS.to_uppercase()),
            format!("sk-skep-prod-{}", &DIGITS[1..]),
            format!("sk-skep-prod-{DIGITS}0"),
            format!("sk-skep-prod--{}", &DIGITS[1..]),
            format!("sk-skep-prod-{}g", &DIGITS[1..]),
            format!("sk-skep-prod-{}é", &DIGITS[2..]),
            format!(" {good}"),
            format!("{good}\n"),
        ] {
            assert_eq!(KeySecret::parse(&wrong).unwrap_err(), Error::InvalidToken, "{wrong:?}");
        }
    }

    #[test]
    fn the_hash_is_sha256_of_the_whole_text() {
        let secret = KeySecret::from_random(Environment::Test, [0; 32]);
        // printf 'sk-skep-test-%064d' 0 | sha256sum
        assert_eq!(secret.hash().to_string(), EXPECTED);
        assert_eq!(EXPECTED.parse::<KeyHash>().unwrap(), secret.hash());
    }

    const EXPECTED: &str = "9bf9b411d1e7e00a2c26288f6befde69fbc4eae9aebc7e37aaa11a295cd9e156";

    #[test]
    fn debugging_shows_no_secret() {
        let secret = KeySecret::from_random(Environment::Dev, [7; 32]);
        assert_eq!(format!("{secret:?}"), "KeySecret(sk-skep-dev-07070707...)");
        assert_eq!(format!("{:?}", secret.hash()).len(), "KeyHash(00000000...)".len());
    }

    proptest! {
        #[test]
        fn a_key_is_redacted_at_any_position(before in ".{0,40}", after in ".{0,40}", random in any::<[u8; 32]>()) {
            let secret = KeySecret::from_random(Environment::Dev, random);
            let text = format!("{before}{}{after}", secret.expose());
            let clean = redact_keys(&text);
            prop_assert!(!clean.contains(secret.expose()));
            prop_assert_eq!(clean, format!("{before}{}...{after}", secret.prefix()));
        }

        #[test]
        fn what_is_generated_is_read_back(random in any::<[u8; 32]>(), at in 0..Environment::ALL.len()) {
            let secret = KeySecret::from_random(Environment::ALL[at], random);
            let read = KeySecret::parse(secret.expose()).unwrap();
            prop_assert_eq!(read.expose(), secret.expose());
            prop_assert_eq!(read.environment(), Environment::ALL[at]);
            prop_assert_eq!(read.hash(), secret.hash());
        }

        #[test]
        fn parsing_any_text_never_panics(text in "(sk-skep-(prod|test)-)?.{0,70}") {
            if let Ok(secret) = KeySecret::parse(&text) {
                prop_assert_eq!(secret.expose(), text);
            }
        }

        #[test]
        fn hashes_differ_in_any_bit(bytes in any::<[u8; 32]>(), bit in 0..256_usize) {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(KeyHash::from_bytes(bytes), KeyHash::from_bytes(other));
            prop_assert_eq!(KeyHash::from_bytes(bytes).to_string().parse(), Ok(KeyHash::from_bytes(bytes)));
        }
    }
}
