//! Creation of tickets, alone or as a graph.

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde_json::json;
use skep_api::{
    TicketId,
    tickets::{CreatedTickets, Object, Ticket as Record, TicketStatus},
};
use skep_tickets::{Blockers, Dependency, NewTicket, State, Ticket, Wait, ready_step};

use super::{
    super::{accounts, error::SqliteError},
    TicketIdGenerator, WithSignals,
    apply::{append, append_derived, is_claimable},
    dependencies,
    fields::{Fields, Texts, record},
    idempotency, open_limit,
    row::Row,
    row_columns,
};
use crate::{Answered, CreateTickets, EventKind, TicketCall, TicketSignal, WaitingTicket};

/// Creates tickets, all of them or none.
pub(in super::super) fn create(
    connection: &Connection,
    ids: &TicketIdGenerator,
    command: &CreateTickets,
) -> Result<WithSignals<Answered<CreatedTickets>>, SqliteError> {
    let mut signals = Vec::new();
    let answered = idempotency::run_once(
        connection,
        &command.call,
        command.idempotency.as_ref(),
        |_| true,
        || create_all(connection, ids, command, &mut signals),
    )?;
    Ok((answered, signals))
}

fn create_all(
    connection: &Connection,
    ids: &TicketIdGenerator,
    command: &CreateTickets,
    signals: &mut Vec<TicketSignal>,
) -> Result<CreatedTickets, SqliteError> {
    accounts::by_id(connection, command.call.account)?;
    open_limit::check(connection, command.call.account, command.tickets.len() as u64)?;
    let new_ids: Vec<TicketId> = command.tickets.iter().map(|_| ids.next()).collect();
    let mut waits = Vec::with_capacity(new_ids.len());
    for ((_, new), id) in command.tickets.iter().zip(&new_ids) {
        let (prerequisites, unmet) = prerequisites(connection, &command.call, new, &new_ids)?;
        let row = row_of(&command.call, new, *id, unmet);
        row_columns::insert(connection, &row)?;
        Texts::of(new).insert(connection, *id)?;
        waits.push((row, prerequisites));
    }
    let mut tickets = Vec::with_capacity(new_ids.len());
    // After all inserts, because a ticket may depend on a later one of the command.
    for (row, prerequisites) in &waits {
        dependencies::insert(connection, row.ticket.id, prerequisites)?;
    }
    for (row, _) in waits {
        tickets.push(announce_created(connection, &command.call, row, signals)?);
    }
    let refs = command.tickets.iter().zip(&new_ids).filter_map(|((name, _), id)| Some((name.clone()?, *id)));
    Ok(CreatedTickets { tickets, refs: refs.collect::<BTreeMap<_, _>>() })
}

/// Returns the dependencies of a ticket, and how many of them are not completed.
fn prerequisites(
    connection: &Connection,
    call: &TicketCall,
    new: &NewTicket,
    own: &[TicketId],
) -> Result<(Vec<TicketId>, u32), SqliteError> {
    let mut unmet = 0;
    let mut all = Vec::with_capacity(new.dependencies.len());
    for dependency in &new.dependencies {
        match dependency {
            Dependency::Sibling(place) => {
                unmet += 1;
                all.extend(own.get(*place).copied());
            }
            Dependency::Ticket(id) => {
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
        counted_attempts: 0,
        max_attempts: new.max_attempts,
        wait: Wait::until(new.not_before, call.at),
        blockers: Blockers { total: unmet, named: Vec::new() },
        started_at: None,
        state: State::Pending { lapsed: None },
    };
    Row {
        ready_at: is_claimable(&ticket).then_some(call.at),
        ticket,
        account: call.account,
        fields: Fields::of(new),
        beats: 0,
        progress: None,
        version: 1,
        created_at: call.at,
        updated_at: call.at,
    }
}

fn announce_created(
    connection: &Connection,
    call: &TicketCall,
    row: Row,
    signals: &mut Vec<TicketSignal>,
) -> Result<Record, SqliteError> {
    let ticket = row.ticket.clone();
    let made = record(connection, row, call.at)?;
    append(connection, call, &ticket, EventKind::TicketCreated, None, json!(made), Object::new())?;
    let ready: Vec<_> = ready_step(None, &ticket, call.at).into_iter().collect();
    append_derived(connection, call, &ready, signals)?;
    if let Wait::Until(not_before) = ticket.wait {
        signals.push(TicketSignal::Waiting(WaitingTicket { ticket: ticket.id, not_before, backoff: None }));
    }
    Ok(made)
}
