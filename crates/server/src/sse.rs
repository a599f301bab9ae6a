//! Server-sent events of streams whose events are made for one caller. `events/frame.rs` has those that many callers share.

use std::{convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response, Sse,
    sse::{Event, KeepAlive},
};
use futures_util::Stream;
use serde::Serialize;

use crate::error::Refusal;

/// Interval of comments while a stream is silent. They also detect a caller that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The response that streams these events.
pub(crate) fn respond(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

pub(crate) fn event(name: &str, data: &impl Serialize) -> Event {
    // The types of the API always serialize.
    let text = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(text)
}

/// The last event of a stream that the server ends. See [`Refusal::log_and_end_stream`].
pub(crate) fn error(refusal: &Refusal, of: &'static str) -> Event {
    event("error", &refusal.log_and_end_stream(of))
}
