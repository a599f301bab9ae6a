//! Requests of `/api/files/watch`: a stream of changes to files.

use std::pin::Pin;

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};
use http::Method;
use skep_api::{exec::StreamRefusal, path::AbsolutePath, streams::FileChange};

use crate::{
    Client, Error, RemotePlace, Result,
    client::error_in_stream,
    events::{IDLE_TIMEOUT, StreamError, with_idle_timeout},
};

/// A change to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedChange {
    /// The change. If its type is `overflow`, changes before it are missing.
    pub change: FileChange,
    /// The JSON as received.
    pub text: String,
}

/// A stream of changes. It ends when the watched folder is removed or the connection is lost.
pub type Changes = Pin<Box<dyn Stream<Item = Result<WatchedChange>> + Send>>;

impl RemotePlace {
    /// `GET /api/files/watch`: watches a folder and its subfolders.
    ///
    /// # Errors
    /// `unknown_path`, `not_a_directory`, `path_outside_roots`, and those of every request; as an item of the stream
    /// `shutting_down`, `vm_ended` and `token_expired`.
    pub async fn watch(&self, path: &AbsolutePath) -> Result<Changes> {
        let client = self.client().clone();
        let request = client.request(Method::GET, &self.query("api/files/watch", path, &[]))?;
        let response = client.send(request).await?;
        let changes = with_idle_timeout(response.bytes_stream())
            .eventsource()
            .map(move |event| parse_change(&client, event));
        Ok(Box::pin(changes))
    }
}

fn parse_change(
    client: &Client,
    event: std::result::Result<Event, EventStreamError<StreamError>>,
) -> Result<WatchedChange> {
    let event = event.map_err(|error| match error {
        EventStreamError::Transport(StreamError::Broken(source)) => client.request_failed(source),
        EventStreamError::Transport(StreamError::Timeout) => {
            client.connection_lost(format!("nothing came for {} s", IDLE_TIMEOUT.as_secs()))
        }
        other => client.unexpected_answer(other.to_string()),
    })?;
    let unexpected = |error: serde_json::Error| Error::UnexpectedAnswer {
        url: format!("the stream of `{}`", event.event),
        why: error.to_string(),
    };
    if event.event == "error" {
        let StreamRefusal { error, message, code } = serde_json::from_str(&event.data).map_err(unexpected)?;
        return Err(error_in_stream(code, error, message));
    }
    let change = serde_json::from_str(&event.data).map_err(unexpected)?;
    Ok(WatchedChange { change, text: event.data })
}
