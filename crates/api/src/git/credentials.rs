//! Stored credentials of git hosts, as they are listed to callers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A host for which a token is stored. The token itself is never returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeptCredential {
    /// The host, with a port if it is not the default.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// The user name that git sends to the host.
    #[cfg_attr(feature = "openapi", schema(example = "x-access-token"))]
    pub username: String,
    /// When the token was stored.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// A page of stored credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialPage {
    /// The credentials, sorted by host.
    pub credentials: Vec<KeptCredential>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The answer to the removal of a credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialRemoved {
    /// The host of the removed credential.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub removed: bool,
}
