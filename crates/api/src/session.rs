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
    /// When the session expires; null if the request was authenticated by a key instead of a session.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
}

/// The answer of `DELETE /api/session`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionEnded {
    /// Whether a session was ended; false if the request was authenticated by a key.
    pub ended: bool,
}
