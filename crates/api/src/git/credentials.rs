//! Credentials as callers give and see them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A host whose token is kept. The token itself is never told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeptCredential {
    /// The host, with its port where a URL names one.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// As whom git presents itself.
    #[cfg_attr(feature = "openapi", schema(example = "x-access-token"))]
    pub username: String,
    /// When the token was given.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
}

/// A page of the hosts whose tokens are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialPage {
    /// By host.
    pub credentials: Vec<KeptCredential>,
    /// What the next page begins with; null on the last.
    pub next_cursor: Option<String>,
}

/// A credential that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CredentialRemoved {
    /// The host.
    #[cfg_attr(feature = "openapi", schema(example = "git.example.com"))]
    pub host: String,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub removed: bool,
}
