//! Creates tickets.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use skep_api::tickets::{CreateTicket, CreateTickets, CreatedTickets, Ticket};
use skep_store::Answered;
use skep_tickets::{check_batch, new_ticket};

use super::{TicketsState, Versioned, replayable_response, ticket_call};
use crate::{
    body::Object,
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, TicketsWrite},
    json::Json,
    openapi::refusals::{CreateTicketRefused, CreateTicketsRefused},
    tickets::{IDEMPOTENCY_KEY_DESCRIPTION, idempotency_key},
};

/// Create a ticket
///
/// The ticket is `pending`, and `ready` unless it has uncompleted dependencies or a `not_before` in the future. An
/// account has at most 100,000 open tickets, pending or in progress.
#[utoipa::path(
    post, path = "/api/tickets", tag = "tickets", operation_id = "create_ticket",
    security(("bearer" = ["tickets:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = IDEMPOTENCY_KEY_DESCRIPTION)),
    request_body(content = CreateTicket, example = json!({"title": "Port the parser", "priority": "high"})),
    responses(
        (status = 201, description = "The record", body = Ticket, headers(
            ("ETag" = String, description = "The version, in quotes"),
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        CreateTicketRefused,
    )
)]
pub(super) async fn create(
    State(state): State<TicketsState>,
    caller: Caller<TicketsWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let idempotency = idempotency_key(&headers, "/api/tickets", &object)?;
    let ticket = new_ticket(object.into_request::<CreateTicket>()?)?;
    let _begun = state.in_progress.begin(caller.account.id, idempotency.as_ref())?;
    let command = skep_store::CreateTickets {
        call: ticket_call(&caller, &call),
        tickets: vec![(None, ticket)],
        idempotency,
    };
    let Answered { answer, replayed } = state.store.create_tickets(command).await?;
    let made = answer.tickets.into_iter().next();
    let made = made.ok_or_else(|| Refusal::internal("a ticket was made and not answered"))?;
    call.audit.set_resource(made.id);
    Ok(replayable_response(StatusCode::CREATED, Answered { answer: made, replayed }, |made| {
        Versioned(made).into_response()
    }))
}

/// Create tickets
///
/// Creates up to 1,000 tickets, or none of them. They can depend on each other, also on later ones, by the `ref` that
/// each has in this request.
#[utoipa::path(
    post, path = "/api/tickets/batch", tag = "tickets", operation_id = "create_tickets",
    security(("bearer" = ["tickets:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = IDEMPOTENCY_KEY_DESCRIPTION)),
    request_body(content = CreateTickets, example = json!({"tickets": [
        {"ref": "plan", "title": "Plan the port"},
        {"ref": "port", "title": "Port the parser", "dependencies": ["ref:plan"]}
    ]})),
    responses(
        (status = 201, description = "The records, and the ids of the refs", body = CreatedTickets, headers(
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        CreateTicketsRefused,
    )
)]
pub(super) async fn create_batch(
    State(state): State<TicketsState>,
    caller: Caller<TicketsWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let idempotency = idempotency_key(&headers, "/api/tickets/batch", &object)?;
    let tickets = check_batch(object.into_request::<CreateTickets>()?)?;
    let _begun = state.in_progress.begin(caller.account.id, idempotency.as_ref())?;
    let command = skep_store::CreateTickets { call: ticket_call(&caller, &call), tickets, idempotency };
    let made = state.store.create_tickets(command).await?;
    match made.answer.tickets.as_slice() {
        [] => {}
        [one] => call.audit.set_resource(one.id),
        // The events with the same request id name all of them.
        [first, others @ ..] => {
            call.audit.set_resource(format_args!("{} and {} more", first.id, others.len()))
        }
    }
    Ok(replayable_response(StatusCode::CREATED, made, |made| Json(made).into_response()))
}
