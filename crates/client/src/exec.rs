//! Commands, whole or as they run.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};
use http::Method;
use serde::de::DeserializeOwned;
use skep_api::exec::{ExecData, ExecExit, ExecOutcome, ExecRequest, StreamRefusal};

use crate::{
    Answered, Client, Error, Result,
    client::{refused_in_stream, segment},
};

/// What a running command says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of standard output.
    Stdout(String),
    /// A piece of standard error.
    Stderr(String),
    /// It ended; the last event.
    Exit(ExecExit),
}

/// The events of a running command. Dropping them ends the command.
pub struct ExecEvents(Pin<Box<dyn Stream<Item = Result<ExecEvent>> + Send>>);

impl Stream for ExecEvents {
    type Item = Result<ExecEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl Client {
    /// `POST /api/exec`: the VM is named in the request.
    ///
    /// # Errors
    /// `unknown_vm`, `vm_ended`, `vm_paused`, `exec_failed`, `guest_timeout`, and those of every call.
    pub async fn exec(&self, request: &ExecRequest) -> Result<Answered<ExecOutcome>> {
        self.post("api/exec", &ExecRequest { stream: None, ..request.clone() }).await
    }

    /// `POST /api/swarm/vm/{pid}/exec`.
    ///
    /// # Errors
    /// As [`Client::exec`].
    pub async fn exec_in(&self, vm: &str, request: &ExecRequest) -> Result<Answered<ExecOutcome>> {
        let request = ExecRequest { stream: None, vm: None, ..request.clone() };
        self.post(&path_of(vm), &request).await
    }

    /// `POST /api/swarm/vm/{pid}/exec` with `stream`: the output as it comes.
    ///
    /// # Errors
    /// As [`Client::exec`], now or as an item of the stream.
    pub async fn exec_stream(&self, vm: &str, request: &ExecRequest) -> Result<ExecEvents> {
        let request = ExecRequest { stream: Some(true), vm: None, ..request.clone() };
        let response = self.send(self.request(Method::POST, &path_of(vm))?.json(&request)).await?;
        let client = self.clone();
        let events = response.bytes_stream().eventsource();
        Ok(ExecEvents(Box::pin(events.map(move |event| client.read_event(event)))))
    }

    fn read_event(
        &self,
        event: std::result::Result<Event, EventStreamError<reqwest::Error>>,
    ) -> Result<ExecEvent> {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(source) => self.unreachable(source),
            other => self.strange(other.to_string()),
        })?;
        match event.event.as_str() {
            "stdout" => Ok(ExecEvent::Stdout(self.data::<ExecData>(&event)?.data)),
            "stderr" => Ok(ExecEvent::Stderr(self.data::<ExecData>(&event)?.data)),
            "exit" => Ok(ExecEvent::Exit(self.data(&event)?)),
            "error" => {
                let StreamRefusal { error, message, code } = self.data(&event)?;
                Err(refused_in_stream(code, error, message))
            }
            other => Err(self.strange(format!("an event named `{other}`"))),
        }
    }

    fn data<T: DeserializeOwned>(&self, event: &Event) -> Result<T> {
        serde_json::from_str(&event.data).map_err(|error| Error::Strange {
            url: format!("the stream of `{}`", event.event),
            why: error.to_string(),
        })
    }
}

fn path_of(vm: &str) -> String {
    format!("api/swarm/vm/{}/exec", segment(vm))
}
