//! Claims ready tickets, and handles heartbeats.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use skep_api::tickets::{Beat, ClaimTickets, ClaimedTickets, Heartbeat};
use skep_store::Answered;
use skep_tickets::{check_heartbeat, parse_claim};
use tokio::time::{Instant, sleep_until};

use super::{TicketsState, replayable_response, ticket_call, ticket_id};
use crate::{
    access_watch::access_lost,
    auth::Identity,
    body::{Body, Object},
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, Segment, TicketWrite, TicketsWrite},
    json::Json,
    openapi::refusals::{BeatRefused, ClaimRefused},
    routes::Answer,
    tickets::{IDEMPOTENCY_KEY_DESCRIPTION, idempotency_key},
};

/// Claim tickets
///
/// Claims ready tickets in one step: most urgent first, then oldest first. Concurrent calls get different tickets. If
/// none is ready, it waits up to `wait_ms` and answers as soon as one is.
#[utoipa::path(
    post, path = "/api/tickets/claim", tag = "tickets", operation_id = "claim_tickets",
    security(("bearer" = ["tickets:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = IDEMPOTENCY_KEY_DESCRIPTION)),
    request_body(content = inline(Option<ClaimTickets>), example = json!({"assignee": "agent-7", "lease_ms": 120_000, "wait_ms": 30_000})),
    responses(
        (status = 200, description = "The claimed tickets; may be empty", body = ClaimedTickets, headers(
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        ClaimRefused,
    )
)]
pub(super) async fn claim(
    State(state): State<TicketsState>,
    caller: Caller<TicketsWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let idempotency = idempotency_key(&headers, "/api/tickets/claim", &object)?;
    let request: ClaimTickets = object.into_request()?;
    let claim = parse_claim(&request, &caller.key.name)?;
    let wait = Duration::from_millis(request.wait_ms.unwrap_or_default());
    let _begun = state.in_progress.begin(caller.account.id, idempotency.as_ref())?;
    let command = skep_store::ClaimTickets { call: ticket_call(&caller, &call), claim, idempotency };
    let claimed = state.claim_within(command, wait, &caller).await?;
    if let [first, ..] = claimed.answer.tickets.as_slice() {
        call.audit.set_resource(first.id);
    }
    Ok(replayable_response(StatusCode::OK, claimed, |claimed| Json(claimed).into_response()))
}

impl TicketsState {
    /// Claims as soon as a ticket is ready. Returns no ticket when the time is over or the server shuts down.
    async fn claim_within(
        mut self,
        mut command: skep_store::ClaimTickets,
        wait: Duration,
        caller: &Identity,
    ) -> Result<Answered<ClaimedTickets>, Refusal> {
        let deadline = Instant::now() + wait;
        let signal = self.waiters.signal(command.call.account);
        let mut is_last_try = wait.is_zero();
        let mut lost = std::pin::pin!(access_lost(self.store.clone(), caller));
        loop {
            // Enabled before the claim, so that a ticket that becomes ready later wakes this call.
            let mut woken = std::pin::pin!(signal.notified());
            woken.as_mut().enable();
            command.call.at = Timestamp::now();
            let claimed = self.store.claim_tickets(command.clone()).await?;
            if is_last_try || !claimed.answer.tickets.is_empty() {
                return Ok(claimed);
            }
            tokio::select! {
                () = woken => {}
                () = sleep_until(deadline) => is_last_try = true,
                _ = self.stopping.wait_for(|stopping| *stopping) => is_last_try = true,
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
    State(state): State<TicketsState>,
    caller: Caller<TicketWrite>,
    Segment(id): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(beat): Body<Heartbeat>,
) -> Answer<Beat> {
    check_heartbeat(&beat)?;
    let id = ticket_id(&id)?;
    call.audit.set_resource(id);
    let command = skep_store::BeatTicket { call: ticket_call(&caller, &call), id, beat };
    Ok(Json(state.store.beat_ticket(command).await?))
}
