//! Whether a known key is still valid.

use jiff::Timestamp;
use skep_api::keys::Key;

use crate::Error;

/// Checks the record of a presented key. A rotated key stays valid beside its successor.
///
/// # Errors
/// [`Error::TokenExpired`] if the key has expired or was revoked.
pub fn check_validity(key: &Key, now: Timestamp) -> Result<(), Error> {
    // The time of a revocation is not compared, because the clock may have been set back since.
    let ended = key.revoked_at.is_some() || key.expires_at.is_some_and(|end| end <= now);
    if ended { Err(Error::TokenExpired) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use skep_api::{AccountId, Environment, KeyId, Scope};

    use super::*;

    fn key(expires_at: Option<Timestamp>, revoked_at: Option<Timestamp>, now: Timestamp) -> Key {
        Key {
            id: KeyId::generate(),
            account: AccountId::generate(),
            prefix: "sk-skep-prod-00000000".to_owned(),
            name: "ci".to_owned(),
            environment: Environment::Prod,
            role: None,
            scopes: vec![Scope::FilesRead],
            vm: None,
            created_at: now - 2.hours(),
            last_used_at: None,
            expires_at,
            revoked_at,
            rotated_at: None,
        }
    }

    #[test]
    fn a_key_is_valid_until_it_expires_or_is_revoked() {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let (before, after) = (now - 1.millisecond(), now + 1.millisecond());
        for (expires, revoked, valid) in [
            (None, None, true),
            (Some(after), None, true),
            (Some(now), None, false),
            (Some(before), None, false),
            (None, Some(before), false),
            (None, Some(after), false),
            (Some(after), Some(before), false),
        ] {
            let expected = if valid { Ok(()) } else { Err(Error::TokenExpired) };
            assert_eq!(check_validity(&key(expires, revoked, now), now), expected, "{expires:?} {revoked:?}");
        }
    }

    #[test]
    fn errors_have_the_text_of_the_specification() {
        assert_eq!(Error::TokenExpired.to_string(), "Token expired");
        assert_eq!(Error::InvalidToken.to_string(), "Invalid token");
    }
}
