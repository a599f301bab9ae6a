//! Claims ready tickets, and handles heartbeats.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use skep_api::{
    keys::Key,
    tickets::{Beat, ClaimTickets, ClaimedTickets, Heartbeat},
};
use skep_store::Answered;
use skep_tickets::{claim_order, heartbeat};
use tokio::time::{Instant, sleep_until};

use super::{TicketDesk, answered, call_of, ticket_id};
use crate::{
    body::{Body, Object},
    error::Refusal,
    extract::{Call, Caller, NoParameters, Query, Segment, TicketWrite, TicketsWrite},
    json::Json,
    key_watch::key_lost,
    openapi::refusals::{BeatRefused, ClaimRefused},
    routes::Answer,
    tickets::{NAMED_ONCE, named_once},
};

/// Claim tickets
///
/// Claims ready tickets in one step: most urgent first, then oldest first. Concurrent calls get different tickets. If
/// none is ready, it waits up to `wait_ms` and answers as soon as one is.
#[utoipa::path(
    post, path = "/api/tickets/claim", tag = "tickets", operation_id = "claim_tickets",
    security(("bearer" = ["tickets:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = NAMED_ONCE)),
    request_body(content = inline(Option<ClaimTickets>), example = json!({"assignee": "agent-7", "lease_ms": 120_000, "wait_ms": 30_000})),
    responses(
        (status = 200, description = "The claimed tickets; may be empty", body = ClaimedTickets, headers(
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        ClaimRefused,
    )
)]
pub(super) async fn claim(
    State(desk): State<TicketDesk>,
    caller: Caller<TicketsWrite>,
    _: Query<NoParameters>,
    call: Call,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let once = named_once(&headers, "/api/tickets/claim", &object)?;
    let order = claim_order(&object.read::<ClaimTickets>()?, &caller.key.name)?;
    let _begun = desk.under_way.begin(caller.account.id, once.as_ref())?;
    let command = skep_store::ClaimTickets {
        call: call_of(&caller, &call),
        assignee: order.assignee,
        count: order.count,
        lease: order.lease,
        priorities: order.priorities,
        labels: order.labels,
        once,
    };
    let claimed = desk.claim_within(command, order.wait, &caller.key).await?;
    if let [first, ..] = claimed.answer.tickets.as_slice() {
        call.trail.acts_on(first.id);
    }
    Ok(answered(StatusCode::OK, claimed, |claimed| Json(claimed).into_response()))
}

impl TicketDesk {
    /// Claims as soon as a ticket is ready. Returns no ticket when the time is over or the server shuts down.
    async fn claim_within(
        mut self,
        mut command: skep_store::ClaimTickets,
        wait: Duration,
        key: &Key,
    ) -> Result<Answered<ClaimedTickets>, Refusal> {
        let until = Instant::now() + wait;
        let signal = self.waiters.of(command.call.account);
        let mut last = wait.is_zero();
        let mut lost = std::pin::pin!(key_lost(Arc::clone(&self.store), key.clone()));
        loop {
            // Enabled before the claim, so that a ticket that becomes ready later wakes this call.
            let mut woken = std::pin::pin!(signal.notified());
            woken.as_mut().enable();
            command.call.at = Timestamp::now();
            let claimed = self.store.claim_tickets(command.clone()).await?;
            if last || !claimed.answer.tickets.is_empty() {
                return Ok(claimed);
            }
            tokio::select! {
                () = woken => {}
                () = sleep_until(until) => last = true,
                _ = self.stopping.wait_for(|stopping| *stopping) => last = true,
                failure = &mut lost => return Err(failure.into()),
            }
        }
    }
}

/// Send a heartbeat
///
/// Renews the lease of the ticket's holder. A 409 means that the lease is lost: stop working; results can still be
/// reported with the `attempt`, unless the ticket was claimed again. A heartbeat creates neither an event nor a new
/// version.
#[utoipa::path(
    post, path = "/api/tickets/{id}/heartbeat", tag = "tickets", operation_id = "beat_ticket",
    security(("bearer" = ["tickets:write"])),
    params(("id" = String, Path, description = "The ticket's id, `tkt_` and 26 characters", example = "tkt_01jv0000000000000000000000")),
    request_body(content = inline(Option<Heartbeat>), example = json!({"attempt": 1, "progress": "120 of 300 files"})),
    responses(
        (status = 200, description = "The renewed lease", body = Beat),
        BeatRefused,
    )
)]
pub(super) async fn beat(
    State(desk): State<TicketDesk>,
    caller: Caller<TicketWrite>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: Call,
    Body(request): Body<Heartbeat>,
) -> Answer<Beat> {
    let beat = heartbeat(&request)?;
    let id = ticket_id(&id)?;
    call.trail.acts_on(id);
    let command =
        skep_store::BeatTicket { call: call_of(&caller, &call), id, beat, progress: request.progress };
    Ok(Json(desk.store.beat_ticket(command).await?))
}
