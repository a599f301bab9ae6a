//! `skep ticket list`, `show` and `why`.

use std::process::ExitCode;

use clap::Args;
use skep_api::{Label, TicketId, tickets::Ticket};
use skep_client::TicketQuery;

use crate::{connection::Connection, output};

/// List tickets: what is claimed next comes first, with --sort priority.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only these, with commas between: pending, in_progress, completed, failed.
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only these, with commas between: critical, high, medium, low.
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// Only those that this one holds, or finished.
    #[arg(long, value_name = "NAME")]
    assignee: Option<String>,
    /// Only those that have this label; of several, all.
    #[arg(short, long = "label", value_name = "LABEL")]
    labels: Vec<Label>,
    /// Only those that can be claimed now.
    #[arg(long, conflicts_with = "blocked")]
    ready: bool,
    /// Only those that cannot.
    #[arg(long)]
    blocked: bool,
    /// Only those that depend on this one.
    #[arg(long, value_name = "ID")]
    depends_on: Option<TicketId>,
    /// created, priority or -updated_at.
    #[arg(long, value_name = "ORDER")]
    sort: Option<String>,
    /// At most so many, 1 to 1000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
    /// Go on where an earlier page ended.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn list(verb: List) -> anyhow::Result<ExitCode> {
    let query = TicketQuery {
        status: verb.status,
        priority: verb.priority,
        assignee: verb.assignee,
        label: (!verb.labels.is_empty()).then(|| listed(&verb.labels, ",")),
        ready: (verb.ready || verb.blocked).then_some(verb.ready),
        depends_on: verb.depends_on,
        sort: verb.sort,
        limit: Some(verb.limit),
        cursor: verb.cursor,
    };
    let page = verb.connection.client()?.tickets(&query).await?;
    if verb.connection.json {
        output::json(&page.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    table(&page.tickets)?;
    if let Some(cursor) = &page.next_cursor {
        output::say(&format!("There is more: --cursor {cursor}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Labels in a line.
pub(super) fn listed(labels: &[Label], between: &str) -> String {
    labels.iter().map(Label::as_str).collect::<Vec<_>>().join(between)
}

/// Tickets as people read them.
pub(super) fn table(tickets: &[Ticket]) -> anyhow::Result<()> {
    let row = |ticket: &Ticket| {
        [
            ticket.id.to_string(),
            state(ticket),
            ticket.priority.to_string(),
            ticket.attempt.to_string(),
            ticket.assignee.as_deref().map_or_else(|| "-".to_owned(), printable),
            printable(&ticket.title),
        ]
    };
    let header = ["ID", "STATE", "PRIORITY", "ATTEMPT", "ASSIGNEE", "TITLE"];
    Ok(output::table(header, tickets.iter().map(row))?)
}

/// Where it stands, in a word; what can be claimed is told from what waits.
pub(super) fn state(ticket: &Ticket) -> String {
    if ticket.ready { "ready".to_owned() } else { ticket.status.to_string() }
}

/// A text of others without what controls a terminal.
pub(in crate::verbs) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Show a ticket: its record, line by line.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The ticket.
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
        ("labels", (!ticket.labels.is_empty()).then(|| listed(&ticket.labels, " "))),
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

/// Say why a ticket waits, and whose act would free it.
#[derive(Debug, Args)]
pub(super) struct Why {
    /// The ticket.
    id: TicketId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn why(verb: Why) -> anyhow::Result<ExitCode> {
    let why = verb.connection.client()?.why_ticket(verb.id).await?;
    if verb.connection.json {
        output::json(&why.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if why.reasons.is_empty() {
        output::line(&format!("{} waits for nothing: it can be claimed now", why.id))?;
    }
    for reason in &why.reasons {
        let until = reason.until.map_or_else(String::new, |until| format!(", until {until:.0}"));
        output::line(&format!("{}: {}{until}; {}", reason.code, printable(&reason.message), reason.who))?;
        for blocker in reason.tickets.iter().flatten() {
            output::line(&format!("  {} {}", blocker.id, blocker.status))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
