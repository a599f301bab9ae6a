//! Requests of `/api/events`: a stream of events.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use eventsource_stream::{Event as Raw, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use http::Method;
use jiff::Timestamp;
use skep_api::{
    TicketId,
    events::{EVENT_ID_HEADER, Event},
    exec::StreamRefusal,
};

use crate::{
    Client, Error, Result,
    client::{encode_segment, error_in_stream},
};

/// The longest time without data. The server sends a comment every 15 seconds.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Selects events and the position to start from.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Event types such as `vm.ended`, or `ticket.*`, separated by commas; default: all that the key may read.
    pub types: Option<String>,
    /// Restricts the stream to one ticket. Its first event is the ticket's record.
    pub ticket: Option<TicketId>,
    /// The id of the last event that was received; default: only new events.
    pub after: Option<String>,
    /// Starts with the first event at or after this time. Cannot be combined with `after`.
    pub since: Option<Timestamp>,
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedEvent {
    /// The event. If its `kind` is `stream.gap`, events before it are missing.
    pub event: Event,
    /// The JSON as received.
    pub text: String,
}

/// A stream of events.
pub struct EventStream {
    events: Pin<Box<dyn Stream<Item = Result<ReceivedEvent>> + Send>>,
    last_id: Option<String>,
}

impl EventStream {
    /// The id to resume from: that of the last received event, or the position at which the stream began.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }
}

impl Stream for EventStream {
    type Item = Result<ReceivedEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.events.as_mut().poll_next(cx));
        if let Some(Ok(followed)) = &next {
            self.last_id = Some(followed.event.id.clone());
        }
        Poll::Ready(next)
    }
}

impl Client {
    /// `GET /api/events`: each event once and in order, until the connection is lost or the server ends the stream.
    ///
    /// # Errors
    /// `unknown_ticket`, `scope_missing`, and those of every request; as an item of the stream `shutting_down` and
    /// `token_expired`.
    pub async fn follow_events(&self, query: &EventQuery) -> Result<EventStream> {
        let given = [
            ("types", query.types.clone()),
            ("ticket", query.ticket.map(|id| id.to_string())),
            ("after", query.after.clone()),
            ("since", query.since.map(|since| since.to_string())),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let pairs: Vec<String> =
            given.map(|(name, value)| format!("{name}={}", encode_segment(&value))).collect();
        let request = self.request(Method::GET, &format!("api/events?{}", pairs.join("&")))?;
        let response = self.send(request).await?;
        let begun = response.headers().get(EVENT_ID_HEADER).and_then(|id| id.to_str().ok());
        let last_id = begun.map(str::to_owned).or_else(|| query.after.clone());
        let client = self.clone();
        let events = with_idle_timeout(response.bytes_stream())
            .eventsource()
            .map(move |event| client.parse_event(event));
        Ok(EventStream { events: Box::pin(events), last_id })
    }

    fn parse_event(
        &self,
        event: std::result::Result<Raw, EventStreamError<StreamError>>,
    ) -> Result<ReceivedEvent> {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(StreamError::Broken(source)) => self.request_failed(source),
            EventStreamError::Transport(StreamError::Timeout) => {
                self.connection_lost(format!("nothing came for {} s", IDLE_TIMEOUT.as_secs()))
            }
            other => self.unexpected_answer(other.to_string()),
        })?;
        let unexpected = |error: serde_json::Error| Error::UnexpectedAnswer {
            url: format!("the stream of `{}`", event.event),
            why: error.to_string(),
        };
        if event.event == "error" {
            let StreamRefusal { error, message, code } =
                serde_json::from_str(&event.data).map_err(unexpected)?;
            return Err(error_in_stream(code, error, message));
        }
        let read = serde_json::from_str(&event.data).map_err(unexpected)?;
        Ok(ReceivedEvent { event: read, text: event.data })
    }
}

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("the connection broke")]
    Broken(#[source] reqwest::Error),
    #[error("nothing came for too long")]
    Timeout,
}

/// Ends a stream with an error if no data arrives for [`IDLE_TIMEOUT`]: a server that is gone may not close the
/// connection.
pub(crate) fn with_idle_timeout<T: Send + 'static>(
    pieces: impl Stream<Item = std::result::Result<T, reqwest::Error>> + Send + 'static,
) -> impl Stream<Item = std::result::Result<T, StreamError>> + Send {
    stream::unfold(Some(Box::pin(pieces)), |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(IDLE_TIMEOUT, pieces.next()).await {
            Ok(piece) => Some((piece?.map_err(StreamError::Broken), Some(pieces))),
            Err(_) => Some((Err(StreamError::Timeout), None)),
        }
    })
}
