//! `GET /api/events`: what happens, as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::{body::Body, extract::State, response::Response};
use futures_util::StreamExt;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    AccountId, ErrorCode, Failure, TicketId,
    events::{EVENT_ID_HEADER, EventId, GapReason},
};
use skep_store::{EventSpan, ReadTicketHistory, Store};
use tokio::sync::watch;
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    error::Refusal,
    events::{Place, Reader, Tail, Wanted, current, gap, place},
    extract::{Caller, EventsAny, Query},
    key_watch::key_lost,
    openapi::refusals::TicketRefused,
};

/// The place that a browser comes back to by itself.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Tells proxies to hold nothing back.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What this route uses.
#[derive(Clone)]
pub(crate) struct EventDesk {
    /// Where events are kept.
    pub store: Arc<dyn Store>,
    /// The newest ones.
    pub tail: Tail,
    /// True when the server shall end: whoever follows comes back to the next one.
    pub stopping: watch::Receiver<bool>,
}

/// The routes of this file.
pub(crate) fn routes(desk: EventDesk) -> Routes {
    vec![routes!(events).with_state(desk)]
}

/// Which events, from where on.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
    /// Types of events, with commas between: `ticket.completed`, or all of a family: `ticket.*`. Unless given, all that the
    /// key may read.
    #[param(example = "ticket.*,vm.ended")]
    types: Option<String>,
    /// Follow one ticket, by its id: the first event is `ticket.current`, its record.
    #[param(example = "tkt_01jv0000000000000000000000", pattern = "^tkt_[0-7][0-9a-hjkmnp-tv-z]{25}$")]
    ticket: Option<String>,
    /// The id of the last event that was seen; the stream goes on behind it. Unless given, it begins now.
    #[param(example = "evt_3f2a9c0d1b4e5f67_42", pattern = "^evt_[0-9a-f]{16}_(0|[1-9][0-9]{0,17})$")]
    after: Option<String>,
    /// A time (RFC 3339); the stream begins with the first event that happened then or later, as far as events are kept. Not
    /// beside `after`; a `Last-Event-ID` comes before it.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
}

/// Follow events
///
/// What happens to the account's tickets (scope `tickets:read`), VMs (`swarm:read`) and keys (`admin`), in the order of
/// commits, each once. A stream that broke is come back to by the last event's id, as `Last-Event-ID` or `after`: nothing is
/// missing then. `since` begins with a time instead. `Skep-Event-Id` names the place where the stream begins, to come back to
/// before the first event. Where events are missing all the same, since they are kept for 30 days or a backup was restored, it
/// begins with `stream.gap`, which says why, and goes on with the oldest that there is. An event `error` (`{error, message, code}`) is the last of a
/// stream that ends by the server or by the key. Each 15 s there is a comment. Who does not read is cut off, and comes back.
#[utoipa::path(
    get, path = "/api/events", tag = "events", operation_id = "events",
    security(("bearer" = ["tickets:read"]), ("bearer" = ["swarm:read"]), ("bearer" = ["admin"])),
    params(
        Which,
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, and before it: browsers send it by themselves"),
    ),
    responses(
        (status = 200, description = "The events as they happen", content((String = "text/event-stream")), headers(
            ("Skep-Event-Id" = String, description = "The place behind which the stream begins")
        )),
        TicketRefused,
    )
)]
async fn events(
    State(desk): State<EventDesk>,
    caller: Caller<EventsAny>,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let from = match (cursor(&headers, which.after.as_deref())?, which.since) {
        (_, Some(_)) if which.after.is_some() => {
            let message = "`after` and `since` both name a beginning; give one of them";
            return Err(Refusal::new(ErrorCode::InvalidValue, message));
        }
        (None, Some(since)) => Some(desk.store.event_place(since).await?),
        (from, _) => from,
    };
    let (types, ticket) = (which.types.as_deref(), which.ticket.as_deref());
    let wanted = Wanted::of(caller.account.id, &caller.key.scopes, types, ticket)?;
    // Before the place is looked up: what is written after it is told.
    let told = desk.tail.follow();
    let Beginning { place: begins, first } = desk.begin(caller.account.id, from, wanted.ticket()).await?;
    let id = HeaderValue::from_str(&begins.at.to_string());
    let mut stopping = desk.stopping.clone();
    let lost = key_lost(Arc::clone(&desk.store), caller.key.clone());
    let ends = Box::pin(async move {
        tokio::select! {
            failure = lost => failure,
            _ = stopping.wait_for(|stopping| *stopping) => {
                Failure::new(ErrorCode::ShuttingDown, "the server ends; come back with the last event's id")
            }
        }
    });
    let EventDesk { store, tail, .. } = desk;
    let reader = Reader { store, tail, told, wanted, place: begins, first, ends };
    let mut answer = Response::new(Body::from_stream(reader.into_frames().map(Ok::<_, Infallible>)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    // Ids are of our own making, so they fit into a header.
    headers.extend(id.map(|id| (HeaderName::from_static(EVENT_ID_HEADER), id)));
    Ok(answer)
}

/// Where a stream begins, and what it begins with.
struct Beginning {
    place: Place,
    first: Vec<bytes::Bytes>,
}

impl EventDesk {
    async fn begin(
        &self,
        account: AccountId,
        from: Option<EventId>,
        ticket: Option<TicketId>,
    ) -> Result<Beginning, Refusal> {
        let span = self.store.event_span().await?;
        let missing = from.as_ref().and_then(|from| missing(from, &span));
        let (mut span, mut record) = (span, None);
        if let Some(id) = ticket {
            if from.is_none() || missing.is_some() {
                let now = self.store.ticket_now(account, id, Timestamp::now()).await?;
                (span, record) = (now.span, Some(now.ticket));
            } else {
                // It may be gone by now, and its last events not yet seen.
                let query = ReadTicketHistory { account, id, limit: 1, after: None };
                self.store.ticket_history(query).await?;
            }
        }
        let EventSpan { epoch, began, oldest, newest } = span;
        let sequence = match (&from, missing, &record) {
            // All that was before stands in the record.
            (_, _, Some(_)) | (None, ..) => newest,
            (Some(_), Some(_), None) => began.max(oldest - 1),
            (Some(from), None, None) => from.sequence.max(began),
        };
        let at = EventId { epoch, sequence };
        let mut first = Vec::with_capacity(2);
        if let (Some(from), Some(reason)) = (&from, missing) {
            first.push(gap(&at, reason, from));
        }
        first.push(match record {
            Some(ticket) => current(&at, ticket),
            None => place(&at),
        });
        Ok(Beginning { place: Place { at, began }, first })
    }
}

/// Why events are missing behind this one, if they are.
fn missing(from: &EventId, span: &EventSpan) -> Option<GapReason> {
    // A place that is still to come was of a store that is no more, as where somebody copied its files.
    if from.epoch != span.epoch || from.sequence > span.newest {
        Some(GapReason::Restored)
    } else {
        (from.sequence.max(span.began) + 1 < span.oldest).then_some(GapReason::Expired)
    }
}

/// The place to come back to.
fn cursor(headers: &HeaderMap, after: Option<&str>) -> Result<Option<EventId>, Failure> {
    let sent: Vec<&HeaderValue> = headers.get_all(LAST_EVENT_ID).iter().filter(|id| !id.is_empty()).collect();
    let (name, text) = match (sent.as_slice(), after) {
        ([], None) => return Ok(None),
        ([], Some(after)) => ("after", after),
        ([id], _) => ("Last-Event-ID", id.to_str().unwrap_or_default()),
        _ => {
            let message = "`Last-Event-ID` stands more than once; send one";
            return Err(Failure::new(ErrorCode::MalformedRequest, message));
        }
    };
    let id = text.parse().map_err(|error| {
        let message = format!("`{name}`: {error}; give the `id` of an event, or leave it out to begin now");
        Failure::new(ErrorCode::InvalidValue, message)
    })?;
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: &str = "3f2a9c0d1b4e5f67";

    #[test]
    fn what_is_missing_is_told_from_what_is_not() {
        let span = EventSpan { epoch: EPOCH.to_owned(), began: 10, oldest: 20, newest: 30 };
        let at = |epoch: &str, sequence| missing(&EventId { epoch: epoch.to_owned(), sequence }, &span);
        for (sequence, expected) in
            [(18, Some(GapReason::Expired)), (19, None), (30, None), (31, Some(GapReason::Restored))]
        {
            assert_eq!(at(EPOCH, sequence), expected, "{sequence}");
        }
        assert_eq!(at("0000000000000000", 25), Some(GapReason::Restored));
        // Nothing of this epoch is missing where the epoch itself is younger.
        let span = EventSpan { began: 19, ..span.clone() };
        assert_eq!(missing(&EventId { epoch: EPOCH.to_owned(), sequence: 0 }, &span), None);
    }

    #[test]
    fn the_header_comes_before_the_parameter() {
        let read = |sent: &[&str], after: Option<&str>| {
            let mut headers = HeaderMap::new();
            sent.iter().for_each(|id| _ = headers.append(LAST_EVENT_ID, HeaderValue::from_str(id).unwrap()));
            cursor(&headers, after).map(|id| id.map(|id| id.sequence)).map_err(|failure| failure.code)
        };
        let id = |sequence: u64| EventId { epoch: EPOCH.to_owned(), sequence }.to_string();
        assert_eq!(read(&[], None), Ok(None));
        assert_eq!(read(&[""], None), Ok(None), "a browser that saw nothing yet");
        assert_eq!(read(&[], Some(&id(7))), Ok(Some(7)));
        assert_eq!(read(&[&id(8)], Some(&id(7))), Ok(Some(8)));
        assert_eq!(read(&[&id(8), &id(9)], None), Err(ErrorCode::MalformedRequest));
        for wrong in ["8", "x"] {
            assert_eq!(read(&[wrong], None), Err(ErrorCode::InvalidValue));
            assert_eq!(read(&[], Some(wrong)), Err(ErrorCode::InvalidValue));
        }
    }
}
