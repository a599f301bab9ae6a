//! `skep ticket history`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use skep_api::{
    TicketId,
    tickets::{Attempt, TicketEvent},
};

use super::show::printable;
use crate::{connection::Connection, output};

/// Length to which values of fields are truncated, in characters.
const MAX_VALUE_CHARS: usize = 60;

/// Show the events and attempts of a ticket, also of a deleted one.
#[derive(Debug, Args)]
pub(super) struct History {
    /// Id of the ticket.
    id: TicketId,
    /// With --json: cursor of an earlier page to continue after.
    #[arg(long, requires = "json")]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(verb: History) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let first = client.ticket_history(verb.id, verb.cursor.as_deref()).await?;
    if verb.connection.json {
        output::json(&first.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let attempts = first.value.attempts.clone();
    let mut page = first.value;
    loop {
        for event in &page.events {
            output::line(&line(event))?;
        }
        let Some(cursor) = page.next_cursor else { break };
        page = client.ticket_history(verb.id, Some(&cursor)).await?.value;
    }
    if !attempts.is_empty() {
        output::line("")?;
        let header = ["ATTEMPT", "ASSIGNEE", "VM", "CLAIMED", "ENDED", "OUTCOME"];
        output::table(header, attempts.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats an event on one line: time, type, assignee, and the new values of the changed fields.
fn line(event: &TicketEvent) -> String {
    let kind = event.kind.strip_prefix("ticket.").unwrap_or(&event.kind);
    let by = event.actor.assignee.as_deref().map_or_else(|| "-".to_owned(), printable);
    let shown = event.changes.iter().filter(|(field, _)| field.as_str() != "version");
    let fields: Vec<String> = shown
        .map(|(field, change)| format!("{field}={}", value(change.get(1).unwrap_or(&Value::Null))))
        .collect();
    format!("{:.3}  {kind:<13}  {by}  {}", event.at, fields.join(" ")).trim_end().to_owned()
}

fn value(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut short: String = printable(&text).chars().take(MAX_VALUE_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

fn row(attempt: &Attempt) -> [String; 6] {
    [
        attempt.attempt.to_string(),
        printable(&attempt.assignee),
        attempt.vm.map_or_else(|| "-".to_owned(), |vm| vm.to_string()),
        output::time(Some(attempt.claimed_at)),
        output::time(attempt.ended_at),
        attempt.outcome.map_or_else(|| "open".to_owned(), |outcome| outcome.to_string()),
    ]
}
