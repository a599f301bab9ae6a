//! Creates tickets.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use skep_api::tickets::{CreateTicket, CreateTickets, CreatedTickets, Ticket};
use skep_store::Answered;
use skep_tickets::{batch, new_ticket};

use super::{TicketDesk, Versioned, answered, call_of};
use crate::{
    body::Object,
    error::Refusal,
    extract::{Call, Caller, NoParameters, Query, TicketsWrite},
    json::Json,
    openapi::refusals::{CreateTicketRefused, CreateTicketsRefused},
    tickets::{NAMED_ONCE, named_once},
};

/// Create a ticket
///
/// The ticket is `pending`, and `ready` unless it has uncompleted dependencies or a `not_before` in the future.
#[utoipa::path(
    post, path = "/api/tickets", tag = "tickets", operation_id = "create_ticket",
    security(("bearer" = ["tickets:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = NAMED_ONCE)),
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
    State(desk): State<TicketDesk>,
    caller: Caller<TicketsWrite>,
    _: Query<NoParameters>,
    call: Call,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let once = named_once(&headers, "/api/tickets", &object)?;
    let ticket = new_ticket(object.read::<CreateTicket>()?)?;
    let _begun = desk.under_way.begin(caller.account.id, once.as_ref())?;
    let command =
        skep_store::CreateTickets { call: call_of(&caller, &call), tickets: vec![(None, ticket)], once };
    let Answered { answer, replayed } = desk.store.create_tickets(command).await?;
    let made = answer.tickets.into_iter().next();
    let made = made.ok_or_else(|| Refusal::internal("a ticket was made and not answered"))?;
    call.trail.acts_on(made.id);
    Ok(answered(StatusCode::CREATED, Answered { answer: made, replayed }, |made| {
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
    params(("Idempotency-Key" = Option<String>, Header, description = NAMED_ONCE)),
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
    State(desk): State<TicketDesk>,
    caller: Caller<TicketsWrite>,
    _: Query<NoParameters>,
    call: Call,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let once = named_once(&headers, "/api/tickets/batch", &object)?;
    let tickets = batch(object.read::<CreateTickets>()?)?;
    let _begun = desk.under_way.begin(caller.account.id, once.as_ref())?;
    let command = skep_store::CreateTickets { call: call_of(&caller, &call), tickets, once };
    let made = desk.store.create_tickets(command).await?;
    match made.answer.tickets.as_slice() {
        [] => {}
        [one] => call.trail.acts_on(one.id),
        // The events with the same request id name all of them.
        [first, others @ ..] => call.trail.acts_on(format_args!("{} and {} more", first.id, others.len())),
    }
    Ok(answered(StatusCode::CREATED, made, |made| Json(made).into_response()))
}
