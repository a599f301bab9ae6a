//! The audit: who did what from where, on which resource, with which outcome.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ErrorCode, KeyId};

/// The action of a request that no operation matched.
pub const UNMATCHED: &str = "unmatched";

/// One write or one refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// When the request arrived.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The key that asked; null where none was known.
    pub key: Option<AuditKey>,
    /// The address that it came from.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "192.0.2.7"))]
    pub address: Option<IpAddr>,
    /// The operation's id in the OpenAPI document; `unmatched` where there is none.
    #[cfg_attr(feature = "openapi", schema(example = "boot"))]
    pub action: String,
    /// What it was done to, by its id; null where nothing is named.
    pub resource: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The request's id.
    pub request_id: String,
}

/// The key of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditKey {
    /// The record's id.
    pub id: KeyId,
    /// The key up to its 8th hex digit.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub prefix: String,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The answer's status; null where the caller went away before it.
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 599))]
    pub status: Option<u16>,
    /// The code of a refusal; null where there was none.
    pub code: Option<ErrorCode>,
}

/// A page of the audit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditList {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}
