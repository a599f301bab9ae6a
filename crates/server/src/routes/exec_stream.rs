//! A running command as server-sent events. Dropping the answer ends the command.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse, Response, Sse,
    sse::{Event, KeepAlive},
};
use futures_util::{Stream, StreamExt, stream};
use jiff::Timestamp;
use serde::Serialize;
use skep_accounts::verdict;
use skep_api::{
    ErrorCode, Failure,
    exec::{ExecData, StreamRefusal},
    keys::Key,
};
use skep_store::Store;
use skep_swarm::{ExecEvent, ExecStream};
use tokio::time::interval;

use crate::{error, error::Refusal, pieces::Pieces};

/// How often it is looked whether the caller's key still holds.
const KEY_CHECK: Duration = Duration::from_secs(5);
/// How often a silent command's caller is told that it still runs, which also shows whether the caller is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The answer that streams these events for as long as the key holds.
pub(super) fn answer(events: ExecStream, store: Arc<dyn Store>, key: Key) -> Response {
    let run = Run {
        events: Some(events),
        stdout: Pieces::default(),
        stderr: Pieces::default(),
        key_lost: Box::pin(key_lost(store, key)),
    };
    Sse::new(run.into_events()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

struct Run {
    /// `None` once it ended.
    events: Option<ExecStream>,
    stdout: Pieces,
    stderr: Pieces,
    /// Lives on from event to event: a look-up that each event cut short would never end while a command floods its output.
    key_lost: Pin<Box<dyn Future<Output = Failure> + Send>>,
}

impl Run {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut run| async move {
            let batch = run.next().await?;
            Some((stream::iter(batch.into_iter().map(Ok)), run))
        })
        .flatten()
    }

    /// The next events, in order; `None` at the end.
    async fn next(&mut self) -> Option<Vec<Event>> {
        let events = self.events.as_mut()?;
        let next = tokio::select! {
            next = events.next() => next,
            failure = &mut self.key_lost => return Some(self.broken(failure.into())),
        };
        match next {
            Some(Ok(ExecEvent::Stdout(bytes))) => Some(data("stdout", self.stdout.push(&bytes))),
            Some(Ok(ExecEvent::Stderr(bytes))) => Some(data("stderr", self.stderr.push(&bytes))),
            Some(Ok(ExecEvent::Exit(exit))) => {
                self.events = None;
                let mut last = self.rest();
                last.push(event("exit", &exit));
                Some(last)
            }
            Some(Err(error)) => Some(self.broken(skep_swarm::Error::from(error).into())),
            None => Some(self.broken(Refusal::internal("a command's events ended without its exit"))),
        }
    }

    fn rest(&mut self) -> Vec<Event> {
        let mut rest = data("stdout", self.stdout.finish());
        rest.extend(data("stderr", self.stderr.finish()));
        rest
    }

    fn broken(&mut self, refusal: Refusal) -> Vec<Event> {
        self.events = None;
        if let Some(cause) = refusal.cause() {
            tracing::error!("a command's stream broke: {cause}");
        }
        let Failure { code, message } = refusal.failure().clone();
        let error = error::reason_of(code.kind()).to_owned();
        let mut last = self.rest();
        last.push(event("error", &StreamRefusal { error, message, code }));
        last
    }
}

/// Answers once the key was revoked or expired. A store that is away for a while ends nothing.
async fn key_lost(store: Arc<dyn Store>, key: Key) -> Failure {
    let mut ticks = interval(KEY_CHECK);
    loop {
        ticks.tick().await;
        match store.key(key.account, key.id).await {
            Ok(record) => {
                if let Err(refusal) = verdict(&record.key, Timestamp::now()) {
                    return refusal.into();
                }
            }
            Err(error) if error.code() == ErrorCode::UnknownKey => {
                return skep_accounts::Refusal::TokenExpired.into();
            }
            Err(error) => tracing::debug!(%error, "a streaming caller's key was not looked up"),
        }
    }
}

fn data(name: &str, text: String) -> Vec<Event> {
    if text.is_empty() { Vec::new() } else { vec![event(name, &ExecData { data: text })] }
}

fn event(name: &str, data: &impl Serialize) -> Event {
    // Our own types of texts and numbers always serialize.
    let text = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(text)
}
