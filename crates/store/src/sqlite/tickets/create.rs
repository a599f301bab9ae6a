//! Creation of tickets, alone or as a graph.

use std::collections::BTreeMap;

use rusqlite::{Connection, named_params, params};
use serde_json::json;
use skep_api::{
    TicketId,
    tickets::{CreatedTickets, Object, Ticket as Record, TicketStatus},
};
use skep_tickets::{Blockers, Needed, NewTicket, State, Ticket, Wait, readied};

use super::{
    super::{
        accounts,
        columns::{self, change, millis, signed},
        fault::Fault,
    },
    TicketIds, Told,
    apply::{announce, append, is_claimable},
    dependencies, once,
    row::{Row, labels_column, milliseconds, rank, record},
};
use crate::{Answered, CreateTickets, EventKind, TicketCall, TicketNews, WaitingTicket};

/// Creates tickets, all of them or none.
pub(in super::super) fn create(
    connection: &Connection,
    ids: &TicketIds,
    command: &CreateTickets,
) -> Result<Told<Answered<CreatedTickets>>, Fault> {
    let mut news = Vec::new();
    let answered = once::answer(
        connection,
        &command.call,
        command.once.as_ref(),
        |_| true,
        || make(connection, ids, command, &mut news),
    )?;
    Ok((answered, news))
}

fn make(
    connection: &Connection,
    ids: &TicketIds,
    command: &CreateTickets,
    news: &mut Vec<TicketNews>,
) -> Result<CreatedTickets, Fault> {
    accounts::by_id(connection, command.call.account)?;
    let own: Vec<TicketId> = command.tickets.iter().map(|_| ids.next()).collect();
    let mut waits = Vec::with_capacity(own.len());
    for ((_, new), id) in command.tickets.iter().zip(&own) {
        let (prerequisites, unmet) = prerequisites(connection, &command.call, new, &own)?;
        let row = row_of(&command.call, new, *id, unmet);
        insert(connection, new, &row)?;
        waits.push((row, prerequisites));
    }
    let mut tickets = Vec::with_capacity(own.len());
    // After all inserts, because a ticket may depend on a later one of the command.
    for (row, prerequisites) in &waits {
        dependencies::insert(connection, row.ticket.id, prerequisites)?;
    }
    for (row, _) in waits {
        tickets.push(tell(connection, &command.call, row, news)?);
    }
    let refs = command.tickets.iter().zip(&own).filter_map(|((name, _), id)| Some((name.clone()?, *id)));
    Ok(CreatedTickets { tickets, refs: refs.collect::<BTreeMap<_, _>>() })
}

/// Returns the dependencies of a ticket, and how many of them are not completed.
fn prerequisites(
    connection: &Connection,
    call: &TicketCall,
    new: &NewTicket,
    own: &[TicketId],
) -> Result<(Vec<TicketId>, u32), Fault> {
    let mut unmet = 0;
    let mut all = Vec::with_capacity(new.needs.len());
    for dependency in &new.needs {
        match dependency {
            Needed::Sibling(place) => {
                unmet += 1;
                all.extend(own.get(*place).copied());
            }
            Needed::Ticket(id) => {
                let status = dependencies::status_of(connection, call.account, *id)?;
                unmet += u32::from(status != TicketStatus::Completed);
                all.push(*id);
            }
        }
    }
    Ok((all, unmet))
}

fn row_of(call: &TicketCall, new: &NewTicket, id: TicketId, unmet: u32) -> Row {
    let ticket = Ticket {
        id,
        attempt: 0,
        counted: 0,
        max_attempts: new.max_attempts,
        wait: Wait::until(new.not_before, call.at),
        blockers: Blockers { total: unmet, named: Vec::new() },
        started_at: None,
        state: State::Pending { lapsed: None },
    };
    Row {
        ticket,
        account: call.account,
        title: new.title.clone(),
        priority: new.priority,
        labels: new.labels.clone(),
        max_runtime: new.max_runtime,
        beats: 0,
        progress: None,
        version: 1,
        created_at: call.at,
        updated_at: call.at,
    }
}

fn insert(connection: &Connection, new: &NewTicket, row: &Row) -> Result<(), Fault> {
    let id = row.ticket.id.to_string();
    change(
        connection,
        "INSERT INTO tickets (id, account, title, priority, status, attempt, counted, max_attempts, max_runtime_ms,
             not_before, waiting, unmet, version, created_at, updated_at, labels, ready_at)
         VALUES (:id, :account, :title, :priority, 'pending', 0, 0, :max_attempts, :max_runtime_ms,
             :not_before, :waiting, :unmet, 1, :at, :at, :labels, :ready_at)",
        named_params! {
            ":id": id,
            ":account": row.account.to_string(),
            ":title": row.title,
            ":priority": rank(row.priority),
            ":max_attempts": row.ticket.max_attempts,
            ":max_runtime_ms": signed(milliseconds(row.max_runtime))?,
            ":not_before": row.ticket.wait.time().map(millis),
            ":waiting": matches!(row.ticket.wait, Wait::Until(_)),
            ":unmet": row.ticket.blockers.total,
            ":at": millis(row.created_at),
            ":labels": labels_column(&row.labels)?,
            ":ready_at": is_claimable(&row.ticket).then(|| millis(row.created_at)),
        },
    )?;
    let metadata = new.metadata.as_ref().map(columns::json).transpose()?;
    let sql = "INSERT INTO ticket_texts (ticket, description, metadata) VALUES (?1, ?2, ?3)";
    change(connection, sql, params![id, new.description, metadata])?;
    Ok(())
}

fn tell(
    connection: &Connection,
    call: &TicketCall,
    row: Row,
    news: &mut Vec<TicketNews>,
) -> Result<Record, Fault> {
    let ticket = row.ticket.clone();
    let made = record(connection, row, call.at)?;
    append(connection, call, &ticket, EventKind::TicketCreated, None, json!(made), Object::new())?;
    let ready: Vec<_> = readied(None, &ticket, call.at).into_iter().collect();
    announce(connection, call, &ready, news)?;
    if let Wait::Until(not_before) = ticket.wait {
        news.push(TicketNews::Waiting(WaitingTicket { ticket: ticket.id, not_before, rest: None }));
    }
    Ok(made)
}
