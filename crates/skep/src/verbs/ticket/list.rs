//! `skep ticket list`.

use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use skep_api::{Label, TicketId, tickets::TicketSummary};
use skep_client::{Client, TicketQuery};

use super::show::{join_labels, table};
use crate::{connection::Connection, output};

/// The statuses of open and of finished tickets.
const OPEN: &str = "pending,in_progress";
const FINISHED: &str = "completed,failed";
const LATEST_FIRST: &str = "-updated_at";

const AFTER_HELP: &str = "Without --status, open tickets come first, then finished ones, the latest first. With --json, the \
answer of the API is printed unchanged, in the order of --sort.";

/// List tickets, open ones first.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct List {
    /// List only tickets with one of these statuses, separated by commas: pending, in_progress, completed, failed.
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// List only tickets with one of these priorities, separated by commas: critical, high, medium, low.
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// List only tickets that this assignee holds or has finished.
    #[arg(long, value_name = "NAME")]
    assignee: Option<String>,
    /// List only tickets with this label; may be given several times, and then all labels are required.
    #[arg(short, long = "label", value_name = "LABEL")]
    labels: Vec<Label>,
    /// List only tickets that can be claimed now.
    #[arg(long, conflicts_with_all = ["blocked", "status"])]
    ready: bool,
    /// List only pending tickets that cannot be claimed yet.
    #[arg(long, conflicts_with = "status")]
    blocked: bool,
    /// List only tickets that depend on this one.
    #[arg(long, value_name = "ID")]
    depends_on: Option<TicketId>,
    /// List only tickets that are connected with this one by dependencies; at most 1000, the nearest ones.
    #[arg(long, value_name = "ID")]
    related_to: Option<TicketId>,
    /// List only tickets whose title or id contains this text, in any case.
    #[arg(short, long, value_name = "TEXT")]
    q: Option<String>,
    /// With --json: leave out descriptions, results and metadata.
    #[arg(long)]
    summary: bool,
    /// Order: created (oldest first), priority (the order of claims) or -updated_at (latest change first).
    #[arg(long, value_name = "ORDER", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Maximum number of tickets, 1 to 1000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
    /// Cursor of an earlier page to continue after.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn list(verb: List) -> anyhow::Result<ExitCode> {
    let pending = (verb.ready || verb.blocked).then(|| "pending".to_owned());
    let query = TicketQuery {
        status: verb.status.or(pending),
        priority: verb.priority,
        assignee: verb.assignee,
        label: (!verb.labels.is_empty()).then(|| join_labels(&verb.labels, ",")),
        ready: (verb.ready || verb.blocked).then_some(verb.ready),
        depends_on: verb.depends_on,
        related_to: verb.related_to,
        search: verb.q,
        sort: verb.sort,
        limit: Some(verb.limit),
        cursor: verb.cursor,
    };
    let client = verb.connection.client()?;
    if verb.connection.json {
        output::json(&answer(&client, &query, verb.summary).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Without --sort, finished tickets are sorted by their latest change.
    let (sort, sorted) = match &query.sort {
        Some(sort) => (sort.clone(), String::new()),
        None => (LATEST_FIRST.to_owned(), format!(" --sort {LATEST_FIRST}")),
    };
    let finished = format!("--status {FINISHED}{sorted}");
    if query.status.is_some() || query.cursor.is_some() {
        let page = client.ticket_summaries(&query).await?.value;
        // After the last page of open tickets, the list continues with the finished ones.
        let was_open = query.cursor.is_some() && query.status.as_deref() == Some(OPEN);
        let next = page.next_cursor.map(|cursor| format!("--cursor {cursor}"));
        return show(&page.tickets, next.or(was_open.then_some(finished)));
    }
    let open = TicketQuery { status: Some(OPEN.to_owned()), ..query.clone() };
    let first = client.ticket_summaries(&open).await?.value;
    if let Some(cursor) = first.next_cursor {
        return show(&first.tickets, Some(format!("--status {OPEN} --cursor {cursor}")));
    }
    let mut tickets = first.tickets;
    let left = verb.limit.saturating_sub(u32::try_from(tickets.len()).unwrap_or(u32::MAX));
    if left == 0 {
        return show(&tickets, Some(finished));
    }
    let query =
        TicketQuery { status: Some(FINISHED.to_owned()), sort: Some(sort), limit: Some(left), ..query };
    let second = client.ticket_summaries(&query).await?.value;
    tickets.extend(second.tickets);
    show(&tickets, second.next_cursor.map(|cursor| format!("{finished} --cursor {cursor}")))
}

/// The answer of the API, unchanged.
async fn answer(client: &Client, query: &TicketQuery, summary: bool) -> Result<Bytes, skep_client::Error> {
    if summary {
        Ok(client.ticket_summaries(query).await?.text)
    } else {
        Ok(client.tickets(query).await?.text)
    }
}

fn show(tickets: &[TicketSummary], more: Option<String>) -> anyhow::Result<ExitCode> {
    table(tickets)?;
    if let Some(options) = more {
        output::eprint_line(&format!("There is more: {options}"));
    }
    Ok(ExitCode::SUCCESS)
}
