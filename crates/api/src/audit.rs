//! The audit log: which key did what from which address, on which resource, with which outcome.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    ErrorCode, KeyId, Scope,
    egress::EgressPolicy,
    endpoint::{Access, Endpoint, Method, Route, Success},
};

/// The `action` of an entry whose request matched no operation.
pub const UNMATCHED_ACTION: &str = "unmatched";

/// Reads the audit log: the query of `GET /api/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListAudit {
    /// Entries on the page, 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline, value_type = Option<crate::AuditId>))]
    pub cursor: Option<String>,
    /// Only entries of this key: `key_` and 26 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub key: Option<KeyId>,
    /// Only this operation, by its id in this document, such as `boot`; `unmatched` for requests that matched no route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Only this outcome: `done`, `refused`, a status such as `403`, or a code such as `scope_missing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Only requests that arrived at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub since: Option<Timestamp>,
    /// Only requests that arrived before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Timestamp>,
}

impl Endpoint for ListAudit {
    const ROUTE: Route = Route {
        tag: "audit",
        summary: "Read the audit log",
        description: "Every write and every refused request of the account, newest first: who did what, from where, on \
                      which resource, with which outcome. Successful reads are not logged. Callers with `server:admin` \
                      also see requests that were refused because their key was unknown. Entries are kept for 30 days, \
                      or less if all exceed their part of the 10 GiB for events and entries: the oldest of the account \
                      that has the most are deleted then.",
        answer_example: r#"{
            "entries": [{
                "at": "2026-05-01T12:00:00.000Z",
                "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20"},
                "address": "192.0.2.7", "action": "end_vm", "resource": "vm_01jv0000000000000000000000",
                "outcome": {"status": 200, "code": null}, "request_id": "01jv0000000000000000000000"
            }],
            "next_cursor": null
        }"#,
        success: Success::Done("A page of the audit log"),
        ..Route::new(Method::Get, "/api/audit", "list_audit", Access::AccountKey(&[Scope::Admin]))
    };
    type Path = ();
    type Answer = AuditList;
}

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
