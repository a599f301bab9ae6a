//! Changes and deletes tickets.

use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use skep_api::tickets::{ChangeTicket, DeletedTicket, Ticket};
use skep_tickets::{parse_edits, parse_transition};
use utoipa::{IntoParams, ToSchema};

use super::{TicketsState, Versioned, expected_versions, ticket_call, ticket_id};
use crate::{
    body::Body,
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, Segment, TicketWrite, TicketsWrite},
    json::Json,
    openapi::refusals::{ChangeTicketRefused, DeleteTicketRefused},
    routes::Answer,
};

/// Change a ticket
///
/// Changes its fields or its state: `status` `in_progress`, or only an `assignee`, claims it, with exactly one winner;
/// `completed` and `failed` finish it; `pending`, or a null assignee, releases or retries it. A caller that gives its
/// `attempt` never overwrites the work of a later one. Absent fields stay unchanged.
#[utoipa::path(
    patch, path = "/api/tickets/{id}", tag = "tickets", operation_id = "change_ticket",
    security(("bearer" = ["tickets:write"])),
    params(
        ("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that the ticket must have; otherwise 412"),
    ),
    request_body(content = inline(Option<ChangeTicket>), example = json!({"status": "in_progress", "assignee": "agent-7", "lease_ms": 120_000})),
    responses(
        (status = 200, description = "The record", body = Ticket, headers(("ETag" = String, description = "The version, in quotes"))),
        ChangeTicketRefused,
    )
)]
pub(super) async fn change(
    State(state): State<TicketsState>,
    caller: Caller<TicketWrite>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    Body(request): Body<ChangeTicket>,
) -> Result<Versioned, Refusal> {
    let expected = expected_versions(&headers)?;
    let edits = parse_edits(&request)?;
    let transition = parse_transition(&request, &caller.key.name)?;
    let id = ticket_id(&id)?;
    call.audit.set_resource(id);
    let command =
        skep_store::ChangeTicket { call: ticket_call(&caller, &call), id, expected, edits, transition };
    Ok(Versioned(state.store.change_ticket(command).await?))
}

/// What happens to the tickets that depend on a deleted one.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Dependents {
    /// The dependency is removed from them.
    Detach,
    /// They are deleted too, with their own dependents.
    Delete,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Deletion {
    /// Whether to delete a ticket that is held; default false.
    force: Option<bool>,
    /// What happens to unfinished tickets that depend on it: `detach` removes it from their dependencies, `delete`
    /// deletes them too. By default, a ticket with such dependents is not deleted.
    #[param(inline)]
    dependents: Option<Dependents>,
}

/// Delete a ticket
///
/// Its history is kept. A ticket that is held is deleted only with `force=true`.
#[utoipa::path(
    delete, path = "/api/tickets/{id}", tag = "tickets", operation_id = "delete_ticket",
    security(("bearer" = ["tickets:write"])),
    params(
        ("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that the ticket must have; otherwise 412"),
        Deletion,
    ),
    responses(
        (status = 200, description = "It was deleted", body = DeletedTicket),
        DeleteTicketRefused,
    )
)]
pub(super) async fn delete(
    State(state): State<TicketsState>,
    caller: Caller<TicketsWrite>,
    Segment(id): Segment,
    Query(deletion): Query<Deletion>,
    call: RequestInfo,
    headers: HeaderMap,
) -> Answer<DeletedTicket> {
    let expected = expected_versions(&headers)?;
    let id = ticket_id(&id)?;
    call.audit.set_resource(id);
    let dependents = match deletion.dependents {
        None => skep_store::Dependents::Refuse,
        Some(Dependents::Detach) => skep_store::Dependents::Detach,
        Some(Dependents::Delete) => skep_store::Dependents::Delete,
    };
    let force = deletion.force == Some(true);
    let command =
        skep_store::DeleteTicket { call: ticket_call(&caller, &call), id, expected, force, dependents };
    Ok(Json(state.store.delete_ticket(command).await?))
}
