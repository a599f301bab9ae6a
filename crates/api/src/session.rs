//! Browser sessions.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::keys::WhoAmIKey;

/// A browser session. Answer of `POST /api/session` and `GET /api/session`. The session token is only in the cookie.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// The key whose permissions the session has.
    pub key: WhoAmIKey,
    /// When the session expires at the latest; it also ends after 60 minutes without a request. Null if the request was
    /// authenticated by a key instead of a session.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
}

/// How a session is created. Body of `POST /api/session` without a key.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateSession {
    /// The token of a link of `POST /api/session/links`, instead of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9a-f]{64}$"))]
    pub token: Option<String>,
}

// The token is a secret.
impl std::fmt::Debug for CreateSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CreateSession(...)")
    }
}

/// A link that opens a browser session once. Answer of `POST /api/session/links`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionLink {
    /// The address of the dashboard, with the token in its fragment.
    #[cfg_attr(feature = "openapi", schema(example = "http://127.0.0.1:7700/#login=5f3a..."))]
    pub url: String,
    /// When the link expires.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub expires_at: Timestamp,
}

// The URL holds a secret.
impl std::fmt::Debug for SessionLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionLink").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// The answer of `DELETE /api/session`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionEnded {
    /// Whether a session was ended; false if the request was authenticated by a key.
    pub ended: bool,
}
