//! `skep ticket graph`.

use std::{
    collections::{BTreeMap, HashSet},
    process::ExitCode,
};

use clap::Args;
use skep_api::{
    TicketId,
    tickets::{Ticket, TicketStatus},
};
use skep_client::{Client, TicketQuery};

use super::show::{printable, state};
use crate::{connection::Connection, output};

/// Page size when tickets are listed.
const PAGE: u32 = 1_000;

/// Show a ticket and its dependencies as a tree; without an id, all tickets that are not completed.
#[derive(Debug, Args)]
pub(super) struct Graph {
    /// Id of the ticket [default: all tickets that are not completed].
    id: Option<TicketId>,
    #[command(flatten)]
    connection: Connection,
}

type Tickets = BTreeMap<TicketId, Ticket>;

pub(super) async fn run(verb: Graph) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let (tickets, roots) = match verb.id {
        Some(id) => (load_with_dependencies(&client, id).await?, vec![id]),
        None => {
            let tickets = unfinished(&client).await?;
            let roots = roots(&tickets);
            (tickets, roots)
        }
    };
    if verb.connection.json {
        let edges: Vec<_> = tickets
            .values()
            .flat_map(|one| one.dependencies.iter().map(|on| serde_json::json!({"from": one.id, "to": on})))
            .collect();
        let shown: Vec<&Ticket> = tickets.values().collect();
        output::value(&serde_json::json!({"tickets": shown, "edges": edges}))?;
    } else {
        for line in tree_lines(&tickets, &roots) {
            output::line(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads a ticket and its dependencies, recursively.
async fn load_with_dependencies(client: &Client, id: TicketId) -> anyhow::Result<Tickets> {
    let (mut tickets, mut open) = (Tickets::new(), vec![id]);
    while let Some(id) = open.pop() {
        if tickets.contains_key(&id) {
            continue;
        }
        let ticket = client.ticket(id).await?.value;
        // Dependencies of a completed ticket may have been deleted.
        if ticket.status != TicketStatus::Completed {
            open.extend(&ticket.dependencies);
        }
        tickets.insert(id, ticket);
    }
    Ok(tickets)
}

async fn unfinished(client: &Client) -> anyhow::Result<Tickets> {
    let status = Some("pending,in_progress,failed".to_owned());
    let mut query = TicketQuery { status, limit: Some(PAGE), ..TicketQuery::default() };
    let mut tickets = Tickets::new();
    loop {
        let page = client.tickets(&query).await?.value;
        tickets.extend(page.tickets.into_iter().map(|ticket| (ticket.id, ticket)));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(tickets);
        }
    }
}

/// The tickets on which no other ticket depends.
fn roots(tickets: &Tickets) -> Vec<TicketId> {
    let waited_for: HashSet<TicketId> = tickets.values().flat_map(|one| one.dependencies.clone()).collect();
    tickets.keys().copied().filter(|id| !waited_for.contains(id)).collect()
}

/// One line per ticket, indented below its dependents. The dependencies of a ticket are listed only once.
fn tree_lines(tickets: &Tickets, roots: &[TicketId]) -> Vec<String> {
    let (mut lines, mut shown) = (Vec::new(), HashSet::new());
    let mut open: Vec<(usize, TicketId)> = roots.iter().rev().map(|id| (0, *id)).collect();
    while let Some((depth, id)) = open.pop() {
        let Some(ticket) = tickets.get(&id) else { continue };
        let first = shown.insert(id);
        let more = if first || ticket.dependencies.is_empty() { "" } else { " (see above)" };
        let (indent, state, title) = ("  ".repeat(depth), state(ticket), printable(&ticket.title));
        lines.push(format!("{indent}{id} {state:<11} {title}{more}"));
        if first {
            open.extend(ticket.dependencies.iter().rev().map(|on| (depth + 1, *on)));
        }
    }
    lines
}
