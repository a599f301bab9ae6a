//! Messages for missing and refused keys. The API's own messages are fixed by its specification and cannot name the
//! source of the command's key.

use skep_accounts::KeySecret;
use skep_api::ErrorCode;

use crate::connection::{Access, KeyOrigin};

const SET_A_KEY: &str = "set SKEP_API_KEY to a key, or give --api-key";

/// The message for a refused key; `None` for other codes.
pub(super) fn message(code: ErrorCode) -> Option<String> {
    let access = Access::current()?;
    match code {
        ErrorCode::MissingToken => Some(missing(access)),
        ErrorCode::InvalidToken => Some(unknown(access)),
        ErrorCode::TokenExpired => Some(expired(access)),
        ErrorCode::HttpsRequired if access.url.starts_with("http:") => Some(format!(
            "the server at {} accepts https only; write https:// instead of http:// in --url or SKEP_URL",
            access.url
        )),
        _ => None,
    }
}

fn missing(access: &Access) -> String {
    let KeyOrigin::Missing { file, why } = &access.key else {
        return format!("the server at {} received no key; {SET_A_KEY}", access.url);
    };
    format!(
        "no API key: SKEP_API_KEY is not set, and the admin key {} {why}; {SET_A_KEY} (on the server's machine, --data-dir \
         names its data directory)",
        file.display()
    )
}

fn unknown(access: &Access) -> String {
    let (url, origin) = (&access.url, &access.key);
    match prefix(access) {
        Some(prefix) => format!(
            "the server at {url} does not know the key {prefix}... from {origin}; check that the key was created on this \
             server"
        ),
        None => format!(
            "the value of {origin} is not a key; a key begins with sk-skep- and ends with 64 hex digits"
        ),
    }
}

fn expired(access: &Access) -> String {
    let key = prefix(access).map(|prefix| format!("{prefix}... ")).unwrap_or_default();
    format!(
        "the key {key}from {} was revoked or has expired; an administrator creates another with `skep keys create`, and \
         `skep keys reset-admin` on the server's machine replaces the admin key",
        access.key
    )
}

pub(super) fn malformed_key() -> String {
    let origin = Access::current().map_or_else(|| "--api-key".to_owned(), |access| access.key.to_string());
    format!(
        "the value of {origin} is not a key: it contains blanks, line ends or other characters that no key has"
    )
}

fn prefix(access: &Access) -> Option<String> {
    Some(KeySecret::parse(access.text.as_deref()?).ok()?.prefix().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(key: KeyOrigin, text: Option<String>) -> Access {
        Access { url: "http://127.0.0.1:7700".to_owned(), key, text }
    }

    #[test]
    fn a_refused_key_is_named_by_its_origin_and_prefix_only() {
        let text = format!("sk-skep-prod-{}", "a1b2".repeat(16));
        let given = access(KeyOrigin::Variable, Some(text.clone()));
        for message in [unknown(&given), expired(&given)] {
            assert!(
                message.contains("SKEP_API_KEY") && message.contains("sk-skep-prod-a1b2a1b2..."),
                "{message}"
            );
            assert!(!message.contains(&text), "{message}");
        }
        let other = access(KeyOrigin::Flag, Some("hunter2".to_owned()));
        let message = unknown(&other);
        assert!(message.contains("--api-key is not a key") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn a_missing_key_names_the_file_that_was_looked_at() {
        let file = std::path::PathBuf::from("/var/lib/skep/admin.key");
        let message = missing(&access(KeyOrigin::Missing { file, why: "does not exist" }, None));
        assert!(message.contains("/var/lib/skep/admin.key does not exist"), "{message}");
        assert!(message.contains("SKEP_API_KEY is not set") && message.contains("--data-dir"), "{message}");
    }
}
