//! Requests of `/api/tickets/{id}/log`.

use std::pin::Pin;

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};
use http::Method;
use serde::de::DeserializeOwned;
use skep_api::{
    TicketId, VmId,
    exec::{ExecData, StreamRefusal},
    run_log::{LogEnd, TicketLog},
};

use crate::{Answered, Client, Error, Result, client::error_in_stream};

/// Selects the log of a ticket and the position to read from.
#[derive(Debug, Clone, Copy, Default)]
pub struct TicketLogQuery {
    /// The attempt; default: the latest attempt with a log.
    pub attempt: Option<u32>,
    /// The VM of the attempt; default: any.
    pub vm: Option<VmId>,
    /// The offset of the first byte.
    pub offset: u64,
}

/// An event of a followed log. Its data is base64 of the exact bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// A piece of output, and the position after it.
    Output(ExecData),
    /// The command ended. The last event.
    End(LogEnd),
}

/// The events of a followed log.
pub type LogEvents = Pin<Box<dyn Stream<Item = Result<LogEvent>> + Send>>;

impl Client {
    /// `GET /api/tickets/{id}/log`: a page of the log, as base64 of the exact bytes.
    ///
    /// # Errors
    /// `unknown_ticket`, `unknown_log`, and those of every request.
    pub async fn ticket_log(&self, id: TicketId, query: TicketLogQuery) -> Result<Answered<TicketLog>> {
        self.get(&path(id, query, false)).await
    }

    /// `GET /api/tickets/{id}/log?follow=true`: the output so far, and further output until the command ends.
    ///
    /// # Errors
    /// As [`Client::ticket_log`], from this call or as an item of the stream.
    pub async fn follow_ticket_log(&self, id: TicketId, query: TicketLogQuery) -> Result<LogEvents> {
        let response = self.send(self.request(Method::GET, &path(id, query, true))?).await?;
        let client = self.clone();
        let events = response.bytes_stream().eventsource().map(move |event| client.read_log_event(event));
        Ok(Box::pin(events))
    }

    fn read_log_event(
        &self,
        event: std::result::Result<Event, EventStreamError<reqwest::Error>>,
    ) -> Result<LogEvent> {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(source) => self.request_failed(source),
            other => self.unexpected_answer(other.to_string()),
        })?;
        match event.event.as_str() {
            "output" => Ok(LogEvent::Output(data(&event)?)),
            "end" => Ok(LogEvent::End(data(&event)?)),
            "error" => {
                let StreamRefusal { error, message, code } = data(&event)?;
                Err(error_in_stream(code, error, message))
            }
            other => Err(self.unexpected_answer(format!("an event named `{other}`"))),
        }
    }
}

fn data<T: DeserializeOwned>(event: &Event) -> Result<T> {
    serde_json::from_str(&event.data).map_err(|error| Error::UnexpectedAnswer {
        url: format!("the event `{}` of a log", event.event),
        why: error.to_string(),
    })
}

fn path(id: TicketId, query: TicketLogQuery, follow: bool) -> String {
    let TicketLogQuery { attempt, vm, offset } = query;
    let mut path = format!("api/tickets/{id}/log?encoding=base64&offset={offset}&follow={follow}");
    if let Some(attempt) = attempt {
        path.push_str(&format!("&attempt={attempt}"));
    }
    if let Some(vm) = vm {
        path.push_str(&format!("&vm={vm}"));
    }
    path
}
