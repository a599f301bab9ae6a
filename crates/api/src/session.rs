//! Sessions of browsers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::keys::WhoAmIKey;

/// The answer of `POST /api/session` and `GET /api/session`. The token is in the cookie alone.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// The key that the caller counts as.
    pub key: WhoAmIKey,
    /// When the session ends by itself; null where the request came with a key and not by a session.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
}

/// The answer of `DELETE /api/session`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionEnded {
    /// Whether there was one: false where the request came with a key.
    pub ended: bool,
}
