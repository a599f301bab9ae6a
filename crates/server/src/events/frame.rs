//! Encodes events as server-sent events: `id`, `event` and one line of `data`.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use skep_api::{
    events::{CurrentTicket, EventId, GapReason, STREAM_GAP, StreamGap, TICKET_CURRENT},
    tickets::Ticket,
};
use skep_store::Event;

use crate::error::Refusal;

pub(super) fn event(event: &Event) -> Bytes {
    let public = event.to_api();
    frame(Some(&public.id), event.kind.as_str(), &public)
}

/// The first event of a stream of one ticket: its current state.
pub(crate) fn current(cursor: &EventId, ticket: Ticket) -> Bytes {
    let (id, kind) = (cursor.to_string(), TICKET_CURRENT.to_owned());
    frame(Some(&id.clone()), TICKET_CURRENT, &CurrentTicket { id, kind, at: Timestamp::now(), ticket })
}

/// The event that reports missing events between `from` and `on`.
pub(crate) fn gap(on: &EventId, reason: GapReason, from: &EventId) -> Bytes {
    let (id, kind, from) = (on.to_string(), STREAM_GAP.to_owned(), from.to_string());
    frame(Some(&id.clone()), STREAM_GAP, &StreamGap { id, kind, at: Timestamp::now(), reason, from })
}

/// The last event of a stream that ends with a refusal.
pub(crate) fn refused(refusal: &Refusal) -> Bytes {
    frame(None, "error", &refusal.log_and_end_stream("events"))
}

/// A comment and an `id`: keeps the connection alive, and advances the `Last-Event-ID` of the client.
pub(crate) fn keep_alive(cursor: &EventId) -> Bytes {
    Bytes::from(format!(": here\nid: {cursor}\n\n"))
}

fn frame(id: Option<&str>, name: &str, data: &impl Serialize) -> Bytes {
    // These types always serialize. Compact JSON contains no line breaks.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    Bytes::from(format!("{id}event: {name}\ndata: {data}\n\n"))
}
