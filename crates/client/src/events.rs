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
    client::{refused_in_stream, segment},
};

/// The longest time without data. The server sends a comment every 15 seconds.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

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
pub struct Followed {
    /// The event. If its `kind` is `stream.gap`, events before it are missing.
    pub event: Event,
    /// The JSON as received.
    pub text: String,
}

/// A stream of events.
pub struct Events {
    events: Pin<Box<dyn Stream<Item = Result<Followed>> + Send>>,
    last_id: Option<String>,
}

impl Events {
    /// The id to resume from: that of the last received event, or the position at which the stream began.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }
}

impl Stream for Events {
    type Item = Result<Followed>;

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
    pub async fn follow_events(&self, query: &EventQuery) -> Result<Events> {
        let given = [
            ("types", query.types.clone()),
            ("ticket", query.ticket.map(|id| id.to_string())),
            ("after", query.after.clone()),
            ("since", query.since.map(|since| since.to_string())),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", segment(&value))).collect();
        let request = self.request(Method::GET, &format!("api/events?{}", pairs.join("&")))?;
        let response = self.send(request).await?;
        let begun = response.headers().get(EVENT_ID_HEADER).and_then(|id| id.to_str().ok());
        let last_id = begun.map(str::to_owned).or_else(|| query.after.clone());
        let client = self.clone();
        let events = heard(response.bytes_stream()).eventsource().map(move |event| client.followed(event));
        Ok(Events { events: Box::pin(events), last_id })
    }

    fn followed(&self, event: std::result::Result<Raw, EventStreamError<Lost>>) -> Result<Followed> {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(Lost::Broken(source)) => self.unreachable(source),
            EventStreamError::Transport(Lost::Silent) => {
                self.silent(format!("nothing came for {} s", SILENCE.as_secs()))
            }
            other => self.strange(other.to_string()),
        })?;
        let strange = |error: serde_json::Error| Error::Strange {
            url: format!("the stream of `{}`", event.event),
            why: error.to_string(),
        };
        if event.event == "error" {
            let StreamRefusal { error, message, code } =
                serde_json::from_str(&event.data).map_err(strange)?;
            return Err(refused_in_stream(code, error, message));
        }
        let read = serde_json::from_str(&event.data).map_err(strange)?;
        Ok(Followed { event: read, text: event.data })
    }
}

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("the connection broke")]
    Broken(#[source] reqwest::Error),
    #[error("nothing came for too long")]
    Silent,
}

/// Ends a stream with an error if no data arrives for [`SILENCE`]: a server that is gone may not close the
/// connection.
pub(crate) fn heard<T: Send + 'static>(
    pieces: impl Stream<Item = std::result::Result<T, reqwest::Error>> + Send + 'static,
) -> impl Stream<Item = std::result::Result<T, Lost>> + Send {
    stream::unfold(Some(Box::pin(pieces)), |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(piece) => Some((piece?.map_err(Lost::Broken), Some(pieces))),
            Err(_) => Some((Err(Lost::Silent), None)),
        }
    })
}
