//! Reads one ticket: its record, why it waits, and its history.

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure,
    budget::MAX_ANSWER_BYTES,
    tickets::{Ticket, TicketHistory, Why},
};
use skep_store::ReadTicketHistory;
use utoipa::IntoParams;

use super::{TicketsState, Versioned, ticket_id};
use crate::{
    error::Refusal,
    extract::{Caller, NoParameters, Query, Segment, TicketRead, TicketsRead},
    json::Json,
    openapi::refusals::TicketRefused,
    routes::Answer,
};

/// Read a ticket
///
/// Returns its record. The `ETag` is its version: a change with `If-Match` applies only to the version that the caller
/// has read. A key that is bound to a VM can read the ticket that this VM works on, and its direct dependencies.
#[utoipa::path(
    get, path = "/api/tickets/{id}", tag = "tickets", operation_id = "read_ticket",
    security(("bearer" = ["tickets:read"])),
    params(("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The record", body = Ticket, headers(("ETag" = String, description = "The version, in quotes"))),
        TicketRefused,
    )
)]
pub(super) async fn read(
    State(state): State<TicketsState>,
    caller: Caller<TicketRead>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Result<Versioned, Refusal> {
    let (account, id, at) = (caller.account.id, ticket_id(&id)?, Timestamp::now());
    let ticket = match caller.key.vm {
        None => state.store.ticket(account, id, at).await?,
        Some(vm) => state.store.ticket_of_vm(account, vm, id, at).await?,
    };
    Ok(Versioned(ticket))
}

/// Explain why a ticket waits
///
/// Returns every reason that keeps it from being claimed, and what would resolve it. Without reasons, it can be claimed
/// now.
#[utoipa::path(
    get, path = "/api/tickets/{id}/why", tag = "tickets", operation_id = "why_ticket",
    security(("bearer" = ["tickets:read"])),
    params(("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000")),
    responses(
        (status = 200, description = "The reasons", body = Why),
        TicketRefused,
    )
)]
pub(super) async fn why(
    State(state): State<TicketsState>,
    caller: Caller<TicketsRead>,
    Segment(id): Segment,
    _: Query<NoParameters>,
) -> Answer<Why> {
    Ok(Json(state.store.why_ticket(caller.account.id, ticket_id(&id)?, Timestamp::now()).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryPage {
    /// Events on the page, 1 to 1,000; default 500.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page: the id of its last event.
    #[param(pattern = "^evt_[0-9a-f]{16}_[0-9]{1,18}$", example = "evt_3f2a9c0d1b4e5f67_42")]
    cursor: Option<String>,
}

/// Read a ticket's history
///
/// Returns its events, and its attempts with their results. The history is kept for 30 days after the ticket was
/// deleted.
#[utoipa::path(
    get, path = "/api/tickets/{id}/history", tag = "tickets", operation_id = "ticket_history",
    security(("bearer" = ["tickets:read"])),
    params(
        ("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000"),
        HistoryPage,
    ),
    responses(
        (status = 200, description = "Events and attempts", body = TicketHistory),
        TicketRefused,
    )
)]
pub(super) async fn history(
    State(state): State<TicketsState>,
    caller: Caller<TicketsRead>,
    Segment(id): Segment,
    Query(page): Query<HistoryPage>,
) -> Answer<TicketHistory> {
    let limit = super::list::check_limit(page.limit)?;
    let after = page.cursor.as_deref().map(sequence).transpose()?;
    let query = ReadTicketHistory { account: caller.account.id, id: ticket_id(&id)?, limit, after };
    caller.memory.reserve(MAX_ANSWER_BYTES as u64).await?;
    let found = state.store.ticket_history(query).await?;
    let next_cursor = found.next.and(found.events.last().map(|last| last.id.clone()));
    Ok(Json(TicketHistory { events: found.events, attempts: found.attempts, next_cursor }))
}

/// The sequence number of an event, from its id.
fn sequence(cursor: &str) -> Result<u64, Failure> {
    let parts = cursor.strip_prefix("evt_").and_then(|rest| rest.split_once('_'));
    let sequence = parts.and_then(|(_, sequence)| sequence.parse().ok());
    sequence.ok_or_else(|| {
        let message =
            format!("`cursor` is `{cursor}`, which is not the id of an event; take it from `next_cursor`");
        Failure::new(ErrorCode::InvalidValue, message)
    })
}
