//! Execution of commands, with the output as a whole or as a stream.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use data_encoding::BASE64;
use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};
use http::Method;
use reqwest::RequestBuilder;
use serde::de::DeserializeOwned;
use skep_api::exec::{
    EXEC_ID_HEADER, ExecData, ExecExit, ExecOutcome, ExecRequest, OutputEncoding, StreamRefusal,
};

use crate::{
    Answered, Client, Error, Result,
    client::{encode_segment, error_in_stream},
};

/// An event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of standard output, as exact bytes.
    Stdout(Vec<u8>),
    /// A piece of standard error, as exact bytes.
    Stderr(Vec<u8>),
    /// The command ended. The last event.
    Exit(ExecExit),
}

/// An event, and the position in its stream after it.
type EventWithOffset = Result<(ExecEvent, u64)>;

/// The events of a running command. Dropping the stream ends the command.
pub struct ExecEvents {
    events: Pin<Box<dyn Stream<Item = EventWithOffset> + Send>>,
    id: Option<String>,
    stdout_offset: u64,
    stderr_offset: u64,
}

impl ExecEvents {
    /// The command's id in its VM, for [`Client::resume_exec`]. `None` if the server sent none.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The position in standard output from which the stream can be resumed, in bytes.
    pub fn stdout_offset(&self) -> u64 {
        self.stdout_offset
    }

    /// The position in standard error from which the stream can be resumed, in bytes.
    pub fn stderr_offset(&self) -> u64 {
        self.stderr_offset
    }
}

impl Stream for ExecEvents {
    type Item = Result<ExecEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.events.as_mut().poll_next(cx));
        Poll::Ready(next.map(|event| {
            let (event, offset) = event?;
            match &event {
                ExecEvent::Stdout(_) => self.stdout_offset = offset,
                ExecEvent::Stderr(_) => self.stderr_offset = offset,
                ExecEvent::Exit(_) => {}
            }
            Ok(event)
        }))
    }
}

impl Client {
    /// `POST /api/exec`: runs a command in the VM that the request names, or on the server.
    ///
    /// # Errors
    /// `unknown_vm`, `vm_ended`, `exec_failed`, `guest_timeout`, and those of every request.
    pub async fn exec(&self, request: &ExecRequest) -> Result<Answered<ExecOutcome>> {
        self.post("api/exec", &ExecRequest { stream: None, ..request.clone() }).await
    }

    /// `POST /api/swarm/vm/{pid}/exec`: runs a command in this VM.
    ///
    /// # Errors
    /// As [`Client::exec`].
    pub async fn exec_in(&self, vm: &str, request: &ExecRequest) -> Result<Answered<ExecOutcome>> {
        let request = ExecRequest { stream: None, vm: None, ..request.clone() };
        self.post(&exec_path(vm), &request).await
    }

    /// `POST /api/exec` with `stream`: returns the output as it arrives. The `encoding` of the request is ignored.
    ///
    /// # Errors
    /// As [`Client::exec`], from this call or as an item of the stream.
    pub async fn exec_stream(&self, request: &ExecRequest) -> Result<ExecEvents> {
        let encoding = Some(OutputEncoding::Base64);
        let request = ExecRequest { stream: Some(true), encoding, ..request.clone() };
        let request = self.request(Method::POST, "api/exec")?.json(&request);
        self.events(request, (0, 0)).await
    }

    /// `GET /api/swarm/vm/{pid}/exec/{exec_id}`: resumes the stream of a command, for example after a restart of the
    /// server. The offsets are those of [`ExecEvents`]; 0 returns all output that is still stored.
    ///
    /// # Errors
    /// `unknown_vm`, `unknown_exec`, `vm_ended`, `guest_timeout`, and those of every request.
    pub async fn resume_exec(
        &self,
        vm: &str,
        exec_id: &str,
        stdout_offset: u64,
        stderr_offset: u64,
    ) -> Result<ExecEvents> {
        let (vm, exec_id) = (exec_path(vm), encode_segment(exec_id));
        let path = format!("{vm}/{exec_id}?stdout={stdout_offset}&stderr={stderr_offset}&encoding=base64");
        self.events(self.request(Method::GET, &path)?, (stdout_offset, stderr_offset)).await
    }

    async fn events(&self, request: RequestBuilder, offsets: (u64, u64)) -> Result<ExecEvents> {
        let response = self.send(request).await?;
        let id = response.headers().get(EXEC_ID_HEADER).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let client = self.clone();
        let events = response.bytes_stream().eventsource().map(move |event| client.read_event(event));
        let (stdout_offset, stderr_offset) = offsets;
        Ok(ExecEvents { events: Box::pin(events), id, stdout_offset, stderr_offset })
    }

    fn read_event(
        &self,
        event: std::result::Result<Event, EventStreamError<reqwest::Error>>,
    ) -> EventWithOffset {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(source) => self.request_failed(source),
            other => self.unexpected_answer(other.to_string()),
        })?;
        match event.event.as_str() {
            "stdout" => self.output(&event).map(|(bytes, offset)| (ExecEvent::Stdout(bytes), offset)),
            "stderr" => self.output(&event).map(|(bytes, offset)| (ExecEvent::Stderr(bytes), offset)),
            "exit" => Ok((ExecEvent::Exit(self.data(&event)?), 0)),
            "error" => {
                let StreamRefusal { error, message, code } = self.data(&event)?;
                Err(error_in_stream(code, error, message))
            }
            other => Err(self.unexpected_answer(format!("an event named `{other}`"))),
        }
    }

    /// Decodes a piece of output. Returns its bytes and the position in its stream after it.
    fn output(&self, event: &Event) -> Result<(Vec<u8>, u64)> {
        let ExecData { data, offset } = self.data(event)?;
        let bytes = BASE64.decode(data.as_bytes());
        let bytes =
            bytes.map_err(|error| self.unexpected_answer(format!("output that is not base64: {error}")))?;
        Ok((bytes, offset))
    }

    fn data<T: DeserializeOwned>(&self, event: &Event) -> Result<T> {
        serde_json::from_str(&event.data).map_err(|error| Error::UnexpectedAnswer {
            url: format!("the stream of `{}`", event.event),
            why: error.to_string(),
        })
    }
}

fn exec_path(vm: &str) -> String {
    format!("api/swarm/vm/{}/exec", encode_segment(vm))
}
