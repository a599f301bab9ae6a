//! `GET /api/events`: streams events as server-sent events.

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
use skep_store::{EventScope, EventSpan, ReadTicketHistory, Store};
use tokio::sync::watch;
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    access_watch::access_lost,
    error::Refusal,
    events::{Cursor, EventFilter, Reader, Tail, current, gap, keep_alive},
    extract::{Caller, EventsAny, Query},
    openapi::refusals::TicketRefused,
};

/// The header with which a browser resumes a stream.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Disables response buffering in proxies such as nginx.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

#[derive(Clone)]
pub(crate) struct EventsState {
    pub store: Arc<dyn Store>,
    pub tail: Tail,
    /// True when the server shuts down. Clients then reconnect to the next server.
    pub stopping: watch::Receiver<bool>,
}

pub(crate) fn routes(state: EventsState) -> Routes {
    vec![routes!(events).with_state(state)]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Comma-separated types of events, such as `ticket.completed`, or families, such as `ticket.*`. Default: all that
    /// the key may read.
    #[param(example = "ticket.*,vm.ended")]
    types: Option<String>,
    /// Only events of this ticket. The first event is `ticket.current` with its record.
    #[param(example = "tkt_01jv0000000000000000000000", pattern = "^tkt_[0-7][0-9a-hjkmnp-tv-z]{25}$")]
    ticket: Option<String>,
    /// The id of the last event received; the stream continues after it. Default: the stream begins now.
    #[param(example = "evt_3f2a9c0d1b4e5f67_42", pattern = "^evt_[0-9a-f]{16}_(0|[1-9][0-9]{0,17})$")]
    after: Option<String>,
    /// A time (RFC 3339). The stream begins with the first event at this time or later that is still kept. Cannot be
    /// combined with `after`; `Last-Event-ID` takes precedence.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// With `false`, the stream ends after the events that exist when it begins. Default: new events follow.
    #[param(example = true)]
    follow: Option<bool>,
}

/// Follow events
///
/// Events of the account's tickets (scope `tickets:read`), VMs (`swarm:read`) and keys (`admin`), in commit order, each
/// once. After a broken connection, reconnect with the id of the last event as `Last-Event-ID` or `after`: no event is
/// lost. `since` begins at a time instead. With `follow=false` the stream ends after the events that exist. The header
/// `Skep-Event-Id` is the id to reconnect with before the first event has arrived. If events are missing, because they
/// are kept for 30 days at most (less if all events take more than their part of 10 GiB) or a backup was restored, the stream
/// begins with `stream.gap`, which gives the reason, and continues with the oldest event. An `error` event (`{error, message, code}`) is the last of a stream that the server
/// ends, for example because the key was revoked. A comment is sent every 15 s. A client that does not read is
/// disconnected and can reconnect.
#[utoipa::path(
    get, path = "/api/events", tag = "events", operation_id = "events",
    security(("bearer" = ["tickets:read"]), ("bearer" = ["swarm:read"]), ("bearer" = ["admin"])),
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, over which it takes precedence; sent by browsers"),
    ),
    responses(
        (status = 200, description = "The events as they happen", content((String = "text/event-stream")), headers(
            ("Skep-Event-Id" = String, description = "The id of the event after which the stream begins")
        )),
        TicketRefused,
    )
)]
async fn events(
    State(state): State<EventsState>,
    caller: Caller<EventsAny>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let from = match (requested_start(&headers, query.after.as_deref())?, query.since) {
        (_, Some(_)) if query.after.is_some() => {
            let message = "`after` and `since` both set the beginning; give one of them";
            return Err(Refusal::new(ErrorCode::InvalidValue, message));
        }
        (None, Some(since)) => Some(state.store.event_position(caller.account.id, since).await?),
        (from, _) => from,
    };
    let (types, ticket) = (query.types.as_deref(), query.ticket.as_deref());
    let filter = EventFilter::parse(caller.account.id, &caller.key.scopes, types, ticket)?;
    // Before the cursor is looked up, so that no later event is missed.
    let buffered = state.tail.subscribe();
    let StreamStart { cursor: start, newest, initial_frames } =
        state.begin(caller.account.id, from, filter.ticket()).await?;
    let until = (query.follow == Some(false)).then_some(newest);
    let id = HeaderValue::from_str(&start.at.to_string());
    let mut stopping = state.stopping.clone();
    let lost = access_lost(state.store.clone(), &caller);
    let end = Box::pin(async move {
        tokio::select! {
            failure = lost => failure,
            _ = stopping.wait_for(|stopping| *stopping) => {
                Failure::new(ErrorCode::ShuttingDown, "the server is shutting down; reconnect with the id of the last event")
            }
        }
    });
    let EventsState { store, tail, .. } = state;
    let reader = Reader { store, tail, buffered, filter, cursor: start, until, initial_frames, end };
    let mut answer = Response::new(Body::from_stream(reader.into_frames().map(Ok::<_, Infallible>)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    // The server generates the ids, so they are valid header values.
    headers.extend(id.map(|id| (HeaderName::from_static(EVENT_ID_HEADER), id)));
    Ok(answer)
}

/// The start of a stream: its cursor, the newest event of all accounts at that time, and its initial frames.
struct StreamStart {
    cursor: Cursor,
    newest: u64,
    initial_frames: Vec<bytes::Bytes>,
}

impl EventsState {
    async fn begin(
        &self,
        account: AccountId,
        from: Option<EventId>,
        ticket: Option<TicketId>,
    ) -> Result<StreamStart, Refusal> {
        let span = self.store.event_span(EventScope::Account(account)).await?;
        let missing = from.as_ref().and_then(|from| missing(from, &span));
        let (mut span, mut record) = (span, None);
        if let Some(id) = ticket {
            if from.is_none() || missing.is_some() {
                let now = self.store.ticket_with_span(account, id, Timestamp::now()).await?;
                (span, record) = (now.span, Some(now.ticket));
            } else {
                // The ticket may be deleted by now, while its last events are still to be sent.
                let query = ReadTicketHistory { account, id, limit: 1, after: None };
                self.store.ticket_history(query).await?;
            }
        }
        let EventSpan { epoch, epoch_start: began, oldest, newest } = span;
        let sequence = match (&from, missing, &record) {
            // The record covers all earlier events.
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
            None => keep_alive(&at),
        });
        Ok(StreamStart { cursor: Cursor { at, epoch_start: began }, newest, initial_frames: first })
    }
}

/// The reason why events after this one are missing, if any are.
fn missing(from: &EventId, span: &EventSpan) -> Option<GapReason> {
    // An id from the future belongs to a store whose files were replaced by an older copy.
    if from.epoch != span.epoch || from.sequence > span.newest {
        Some(GapReason::Restored)
    } else {
        (from.sequence.max(span.epoch_start) + 1 < span.oldest).then_some(GapReason::Expired)
    }
}

/// The event after which the stream shall begin.
fn requested_start(headers: &HeaderMap, after: Option<&str>) -> Result<Option<EventId>, Failure> {
    let sent: Vec<&HeaderValue> = headers.get_all(LAST_EVENT_ID).iter().filter(|id| !id.is_empty()).collect();
    let (name, text) = match (sent.as_slice(), after) {
        ([], None) => return Ok(None),
        ([], Some(after)) => ("after", after),
        ([id], _) => ("Last-Event-ID", id.to_str().unwrap_or_default()),
        _ => {
            let message = "`Last-Event-ID` is given more than once; send one";
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
    fn missing_events_are_detected() {
        let span = EventSpan { epoch: EPOCH.to_owned(), epoch_start: 10, oldest: 20, newest: 30 };
        let at = |epoch: &str, sequence| missing(&EventId { epoch: epoch.to_owned(), sequence }, &span);
        for (sequence, expected) in
            [(18, Some(GapReason::Expired)), (19, None), (30, None), (31, Some(GapReason::Restored))]
        {
            assert_eq!(at(EPOCH, sequence), expected, "{sequence}");
        }
        assert_eq!(at("0000000000000000", 25), Some(GapReason::Restored));
        // Events before the beginning of the epoch do not count as missing.
        let span = EventSpan { epoch_start: 19, ..span.clone() };
        assert_eq!(missing(&EventId { epoch: EPOCH.to_owned(), sequence: 0 }, &span), None);
    }

    #[test]
    fn the_header_comes_before_the_parameter() {
        let read = |sent: &[&str], after: Option<&str>| {
            let mut headers = HeaderMap::new();
            sent.iter().for_each(|id| _ = headers.append(LAST_EVENT_ID, HeaderValue::from_str(id).unwrap()));
            requested_start(&headers, after)
                .map(|id| id.map(|id| id.sequence))
                .map_err(|failure| failure.code)
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
