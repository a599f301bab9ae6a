//! `skep ticket show` and `why`, and the formatting of tickets.

use std::process::ExitCode;

use clap::Args;
use skep_api::{
    Label, TicketId,
    tickets::{Ticket, TicketSummary},
};

use crate::{connection::Connection, output};

pub(super) fn join_labels(labels: &[Label], between: &str) -> String {
    labels.iter().map(Label::as_str).collect::<Vec<_>>().join(between)
}

/// Prints tickets as a table.
pub(super) fn table(tickets: &[TicketSummary]) -> anyhow::Result<()> {
    let row = |ticket: &TicketSummary| {
        [
            ticket.id.to_string(),
            if ticket.ready { "ready".to_owned() } else { ticket.status.to_string() },
            ticket.priority.to_string(),
            ticket.attempt.to_string(),
            ticket.assignee.as_deref().map_or_else(|| "-".to_owned(), printable),
            printable(&ticket.title),
        ]
    };
    let header = ["ID", "STATE", "PRIORITY", "ATTEMPT", "ASSIGNEE", "TITLE"];
    Ok(output::table(header, tickets.iter().map(row))?)
}

/// The status of a ticket, or `ready` if it can be claimed.
pub(super) fn state(ticket: &Ticket) -> String {
    if ticket.ready { "ready".to_owned() } else { ticket.status.to_string() }
}

/// Replaces control characters in untrusted text with blanks.
pub(in crate::verbs) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Show a ticket: its record, line by line.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Id of the ticket.
    id: TicketId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn show(verb: Show) -> anyhow::Result<ExitCode> {
    let ticket = verb.connection.client()?.ticket(verb.id).await?;
    if verb.connection.json {
        output::json(&ticket.text)?;
    } else {
        record(&ticket)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn record(ticket: &Ticket) -> anyhow::Result<()> {
    let json = |object: &Option<skep_api::tickets::Object>| {
        object.as_ref().map(|object| serde_json::Value::from(object.clone()).to_string())
    };
    let ids = |ids: Vec<String>| (!ids.is_empty()).then(|| ids.join(" "));
    let at = |time: Option<jiff::Timestamp>| time.map(|time| output::time(Some(time)));
    let blockers = ticket.blocked_by.iter().map(|one| format!("{} ({})", one.id, one.status));
    let lines = [
        ("id", Some(ticket.id.to_string())),
        ("title", Some(printable(&ticket.title))),
        ("state", Some(state(ticket))),
        ("priority", Some(ticket.priority.to_string())),
        ("assignee", ticket.assignee.as_deref().map(printable)),
        ("labels", (!ticket.labels.is_empty()).then(|| join_labels(&ticket.labels, " "))),
        ("vm", ticket.vm.map(|vm| vm.to_string())),
        ("attempt", (ticket.attempt > 0).then(|| format!("{} of {}", ticket.attempt, ticket.max_attempts))),
        ("lease until", at(ticket.lease_expires_at)),
        ("not before", at(ticket.not_before)),
        ("depends on", ids(ticket.dependencies.iter().map(TicketId::to_string).collect())),
        ("blocked by", ids(blockers.collect())),
        ("progress", ticket.progress.as_deref().map(printable)),
        ("metadata", json(&ticket.metadata)),
        ("result", json(&ticket.result)),
        ("created", at(Some(ticket.created_at))),
        ("started", at(ticket.started_at)),
        ("finished", at(ticket.finished_at)),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            output::line(&format!("{name:<12} {value}"))?;
        }
    }
    if let Some(description) = &ticket.description {
        let lines: Vec<String> = description.lines().map(printable).collect();
        output::line(&format!("\n{}", lines.join("\n")))?;
    }
    Ok(())
}

/// Show why a ticket cannot proceed, and what would unblock it.
#[derive(Debug, Args)]
pub(super) struct Why {
    /// Id of the ticket.
    id: TicketId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn why(verb: Why) -> anyhow::Result<ExitCode> {
    let why = verb.connection.client()?.explain_ticket(verb.id).await?;
    if verb.connection.json {
        output::json(&why.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if why.reasons.is_empty() {
        output::line("ready: it can be claimed now")?;
    }
    for reason in &why.reasons {
        let until = reason.until.map_or_else(String::new, |until| format!(", until {until:.0}"));
        output::line(&format!("{}{until}; freed by {}", printable(&reason.message), printable(&reason.who)))?;
        for blocker in reason.tickets.iter().flatten() {
            output::line(&format!("  {} {}", blocker.id, blocker.status))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
