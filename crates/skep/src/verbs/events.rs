//! `skep events`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use futures_util::StreamExt;
use jiff::Timestamp;
use serde_json::Value;
use skep_api::{ErrorCode, TicketId, events::STREAM_GAP};
use skep_client::{Client, Error, EventQuery, ReceivedEvent};
use tokio::time::sleep;

use crate::{connection::Connection, failure, output, time_argument::past};

/// Delay before the first reconnection; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);

/// Print events of tickets, VMs, templates and keys as they occur.
///
/// A lost connection is restored without losing events.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Event types: ticket.completed, or a family such as ticket.* [default: all that the key may read].
    // `--types` is what the option was called before.
    #[arg(short, long = "type", alias = "types", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Print only events of this ticket. Its current state is printed first, unless --after, --since or --from-start is
    /// given.
    #[arg(long, value_name = "ID")]
    ticket: Option<TicketId>,
    /// Start after the event with this id [default: start now].
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Start with the first event since this time: a duration such as 90s, 2h or 30d (ago), a date, or a time.
    #[arg(long, value_name = "TIME", conflicts_with = "after", value_parser = past)]
    since: Option<Timestamp>,
    /// Start with the oldest event that is kept.
    #[arg(long, conflicts_with_all = ["after", "since"])]
    from_start: bool,
    /// Exit after this number of events.
    #[arg(short = 'n', long, value_name = "NUMBER")]
    count: Option<u64>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Events) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let since = if verb.from_start { Some(Timestamp::UNIX_EPOCH) } else { verb.since };
    let types = (!verb.types.is_empty()).then(|| verb.types.join(","));
    let mut query = EventQuery { types, ticket: verb.ticket, after: verb.after, since };
    let mut printer = Printer { json: verb.connection.json, left: verb.count };
    // Errors of the first request are not retried: they may concern the request itself.
    let mut events = client.follow_events(&query).await?;
    loop {
        let lost = loop {
            match events.next().await {
                Some(Ok(followed)) => {
                    if !printer.print(&followed)? {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        if let Some(error) = lost.filter(|error| !is_transient(error)) {
            return Err(error.into());
        }
        if let Some(last) = events.last_id() {
            query = EventQuery { after: Some(last.to_owned()), since: None, ..query };
        }
        events = reconnect(&client, &query).await?;
    }
}

/// Retries until the server accepts the request.
async fn reconnect(client: &Client, query: &EventQuery) -> anyhow::Result<skep_client::EventStream> {
    let mut delay = MIN_RETRY_DELAY;
    loop {
        match client.follow_events(query).await {
            Err(error) if is_transient(&error) => {
                if delay == MIN_RETRY_DELAY {
                    output::eprint_line(&format!(
                        "skep: {}; trying again until the server answers",
                        failure::of_client(&error)
                    ));
                }
                sleep(delay).await;
                delay = (delay * 2).min(MAX_RETRY_DELAY);
            }
            other => return Ok(other?),
        }
    }
}

/// Whether a retry may succeed.
pub(super) fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        Error::Refused { status, code, .. } => {
            let passing = [ErrorCode::ShuttingDown, ErrorCode::StoreUnavailable, ErrorCode::RateLimited];
            matches!(status, 429 | 502..=504) || code.is_some_and(|code| passing.contains(&code))
        }
        Error::Url { .. }
        | Error::Key
        | Error::Roots
        | Error::NotUpgraded { .. }
        | Error::UnexpectedAnswer { .. } => false,
    }
}

struct Printer {
    json: bool,
    left: Option<u64>,
}

impl Printer {
    /// Prints an event; returns whether to continue.
    fn print(&mut self, followed: &ReceivedEvent) -> anyhow::Result<bool> {
        if self.json {
            output::line(&followed.text)?;
        } else {
            output::line(&line(followed))?;
            if followed.event.kind == STREAM_GAP {
                output::eprint_line(
                    "skep: events were lost here; reload any state that you derived from them",
                );
            }
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
        Ok(self.left != Some(0) && !output::is_stdout_closed())
    }
}

/// Formats an event on one line: time, type, subject, details.
fn line(followed: &ReceivedEvent) -> String {
    let event = &followed.event;
    let body = &event.body;
    let subject = match body.get("ticket") {
        Some(Value::Object(record)) => record.get("id"),
        Some(id) => Some(id),
        None => body.get("vm").filter(|vm| event.kind.starts_with("vm.") && !vm.is_null()),
    };
    let mut fields = vec![format!("{:.3}", event.at), format!("{:<21}", event.kind)];
    fields.extend(subject.or_else(|| body.get("key")).map(text));
    let record = body.get("ticket").and_then(Value::as_object);
    let actor = body.get("actor").and_then(|actor| actor.get("assignee"));
    let named = [
        ("title", record.and_then(|record| record.get("title"))),
        ("assignee", actor),
        ("attempt", body.get("attempt").filter(|attempt| attempt.as_u64() > Some(0))),
        ("pid", body.get("pid")),
        ("name", body.get("name")),
        ("reason", body.get("reason")),
        ("message", body.get("message")),
    ];
    let named =
        named.into_iter().filter_map(|(name, value)| Some((name, value.filter(|one| !one.is_null())?)));
    fields.extend(named.map(|(name, value)| format!("{name}={}", text(value))));
    fields.join("  ")
}

/// Formats a value: a string without control characters, other values as JSON.
fn text(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        for (json, expected) in [
            (
                r#"{"id": "evt_a_1", "type": "ticket.claimed", "at": "2027-01-01T00:00:00Z", "request_id": null,
                    "ticket": "tkt_1", "actor": {"assignee": "a\nb"}, "attempt": 2}"#,
                "2027-01-01T00:00:00.000Z  ticket.claimed         tkt_1  assignee=a b  attempt=2",
            ),
            (
                r#"{"id": "evt_a_1", "type": "ticket.created", "at": "2027-01-01T00:00:00Z", "attempt": 0,
                    "ticket": {"id": "tkt_1", "title": "Port it"}, "actor": {"assignee": null}}"#,
                "2027-01-01T00:00:00.000Z  ticket.created         tkt_1  title=Port it",
            ),
            (
                r#"{"id": "evt_a_1", "type": "key.revoked", "at": "2027-01-01T00:00:00Z", "key": "key_1", "vm": null,
                    "name": "ci"}"#,
                "2027-01-01T00:00:00.000Z  key.revoked            key_1  name=ci",
            ),
            (
                r#"{"id": "evt_a_1", "type": "vm.ended", "at": "2027-01-01T00:00:00Z", "vm": "vm_1", "pid": 7,
                    "name": null, "reason": "lost", "message": "it did not answer within 30 s"}"#,
                "2027-01-01T00:00:00.000Z  vm.ended               vm_1  pid=7  reason=lost  \
                 message=it did not answer within 30 s",
            ),
        ] {
            let event = serde_json::from_str(json).unwrap();
            assert_eq!(line(&ReceivedEvent { event, text: String::new() }), expected);
        }
    }
}
