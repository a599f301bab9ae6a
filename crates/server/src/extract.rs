//! Extractors of handlers. The order of a handler's arguments is the order of the checks; `handle::serve` has that of
//! all operations with a `Handle`.

mod caller;
mod path;
mod query;

use axum::extract::FromRequestParts;
use http::request::Parts;

pub(crate) use self::{
    caller::{
        AnyKey, Caller, EventsAny, ExecAnywhere, FilesRead, FilesWrite, MetricsRead, Requirement,
        ServerAdmin, SwarmExec, SwarmRead, SwarmWrite, TicketRead, TicketWrite, TicketsRead, TicketsWrite,
        check_scope, vm_key_limited,
    },
    path::{ExecPath, Segment, Segments, VM_REFERENCE, VmPath, not_utf8, parse_vm},
    query::{KeyPrefix, KeyedQuery, NoParameters, Query, query_pairs, read_query},
};
use crate::{
    audit_context::AuditContext,
    error::Refusal,
    request::{Arrival, RequestId},
};

/// The arrival, the id and the audit context of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestInfo {
    pub arrival: Arrival,
    pub id: RequestId,
    pub audit: AuditContext,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestInfo {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let arrival = parts.extensions.get::<Arrival>().copied();
        let audit_context = AuditContext::from_extensions(&parts.extensions).cloned().unwrap_or_default();
        match (arrival, parts.extensions.get::<RequestId>()) {
            (Some(arrival), Some(id)) => Ok(Self { arrival, id: id.clone(), audit: audit_context }),
            _ => Err(Refusal::internal("a request bypassed the layer that observes it")),
        }
    }
}
