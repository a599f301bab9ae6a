//! The audit log: which key did what from which address, on which resource, with which outcome.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ErrorCode, KeyId, egress::EgressPolicy};

/// The `action` of an entry whose request matched no operation.
pub const UNMATCHED_ACTION: &str = "unmatched";

/// An audited request: a write, or a request that was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// When the request arrived.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The key of the request; null if it had no known key.
    pub key: Option<AuditKey>,
    /// The address that the request came from.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "192.0.2.7"))]
    pub address: Option<IpAddr>,
    /// The operation's id in the OpenAPI document; `unmatched` if the request matched no operation.
    #[cfg_attr(feature = "openapi", schema(example = "boot"))]
    pub action: String,
    /// The id of the affected resource; null if the request named none.
    pub resource: Option<String>,
    /// The egress policy that the request gave to VMs or to an account. Null if it gave none, and for VMs that were booted with `none`.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::audited_policy_schema))]
    pub egress: Option<EgressPolicy>,
    /// The outcome of the request.
    pub outcome: Outcome,
    /// The id of the request, as in the log.
    pub request_id: String,
}

/// The key of an audit entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditKey {
    /// The id of the key's record.
    pub id: KeyId,
    /// The first characters of the key, up to its 8th hexadecimal digit.
    #[cfg_attr(feature = "openapi", schema(example = "sk-skep-prod-3f9a1c20"))]
    pub prefix: String,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The HTTP status of the answer; null if the caller disconnected before it.
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 599))]
    pub status: Option<u16>,
    /// The error code; null if the request succeeded.
    pub code: Option<ErrorCode>,
}

/// A page of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditList {
    /// The entries, newest first.
    pub entries: Vec<AuditEntry>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}
