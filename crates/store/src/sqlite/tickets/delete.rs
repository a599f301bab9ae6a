//! Deletion of tickets. Their history is kept.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};
use serde_json::json;
use skep_api::{
    TicketId,
    tickets::{Blocker, DeletedTicket, Object, TicketStatus},
};
use skep_tickets::{State, limits, ready_step};

use super::{
    super::{
        columns::{execute, millis, query_all},
        error::SqliteError,
    },
    WithSignals,
    apply::{Change, append, apply, signal_end_of_vm},
    change::without_dependency,
    dependencies,
    row::{Row, check_version, find, find_for_caller},
};
use crate::{DeleteTicket, Dependents, Error, EventKind, TicketSignal};

pub(in super::super) fn delete(
    connection: &Connection,
    command: &DeleteTicket,
) -> Result<WithSignals<DeletedTicket>, SqliteError> {
    let row = find_for_caller(connection, &command.call, command.id)?;
    check_version(&row, command.expected.as_deref())?;
    check_holder(&row, command)?;
    let mut signals = Vec::new();
    let unfinished = dependents(connection, command.id, true)?;
    match command.dependents {
        Dependents::Refuse if !unfinished.is_empty() => return Err(refused(command.id, &unfinished)),
        Dependents::Refuse | Dependents::Detach => {}
        Dependents::Delete => delete_dependents(connection, command, &mut signals)?,
    }
    detach(connection, command, &row, &mut signals)?;
    remove(connection, command, &row, &mut signals)?;
    Ok((DeletedTicket { id: command.id, deleted: true }, signals))
}

fn check_holder(row: &Row, command: &DeleteTicket) -> Result<(), SqliteError> {
    match &row.ticket.state {
        State::InProgress(holder) if !command.force => Err(Error::TicketHeld {
            id: row.ticket.id,
            holder: holder.assignee.clone(),
            attempt: row.ticket.attempt,
        }
        .into()),
        _ => Ok(()),
    }
}

fn refused(id: TicketId, unfinished: &[Blocker]) -> SqliteError {
    let dependents = unfinished.iter().take(limits::MAX_NAMED_TICKETS).copied().collect();
    Error::HasDependents { id, total: unfinished.len(), dependents }.into()
}

/// Returns the dependents of a ticket that are not completed; with `unfinished`, failed ones are excluded too.
fn dependents(connection: &Connection, id: TicketId, unfinished: bool) -> Result<Vec<Blocker>, SqliteError> {
    let sql = "SELECT t.id, t.status FROM ticket_dependencies AS d JOIN tickets AS t ON t.id = d.dependent
               WHERE d.prerequisite = ?1 AND t.status <> 'completed' AND (NOT ?2 OR t.status <> 'failed')
               ORDER BY d.dependent";
    query_all(connection, sql, params![id.to_string(), unfinished], |row| {
        Ok(Blocker { id: row.parse("id")?, status: row.parse("status")? })
    })
}

/// Deletes the unfinished tickets that depend on the ticket of the command, recursively.
fn delete_dependents(
    connection: &Connection,
    command: &DeleteTicket,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    let mut all = BTreeSet::new();
    let mut open = vec![command.id];
    while let Some(id) = open.pop() {
        for one in dependents(connection, id, true)? {
            if all.insert(one.id) {
                open.push(one.id);
            }
        }
    }
    // Newest first, so that dependents are usually deleted before their dependencies.
    for id in all.into_iter().rev() {
        let Some(row) = find(connection, id)? else { continue };
        check_holder(&row, command)?;
        detach(connection, command, &row, signals)?;
        remove(connection, command, &row, signals)?;
    }
    Ok(())
}

/// Removes a ticket from the dependencies of tickets that are not completed.
fn detach(
    connection: &Connection,
    command: &DeleteTicket,
    row: &Row,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    let completed = row.ticket.status() == TicketStatus::Completed;
    if !completed {
        // Tickets that were completed before this dependency keep their record, but their counter must be correct.
        let sql = "UPDATE tickets SET unmet = unmet - 1 WHERE status = 'completed'
                   AND id IN (SELECT dependent FROM ticket_dependencies WHERE prerequisite = ?1)";
        execute(connection, sql, [row.ticket.id.to_string()])?;
    }
    for one in dependents(connection, row.ticket.id, false)? {
        let Some(before) = find(connection, one.id)? else { continue };
        let old = dependencies::of(connection, one.id)?;
        let sql = "DELETE FROM ticket_dependencies WHERE dependent = ?1 AND prerequisite = ?2";
        execute(connection, sql, [one.id.to_string(), row.ticket.id.to_string()])?;
        let new: Vec<TicketId> = old.iter().copied().filter(|id| *id != row.ticket.id).collect();
        let mut edited = before.clone();
        edited.ticket = without_dependency(&before.ticket, completed);
        let steps = ready_step(Some(&before.ticket), &edited.ticket, command.call.at).into_iter().collect();
        let edits = Object::from_iter([("dependencies".to_owned(), json!([old, new]))]);
        apply(connection, &command.call, Change { before: &before, edited, edits, steps }, signals)?;
    }
    Ok(())
}

fn remove(
    connection: &Connection,
    command: &DeleteTicket,
    row: &Row,
    signals: &mut Vec<TicketSignal>,
) -> Result<(), SqliteError> {
    let (id, at) = (row.ticket.id.to_string(), millis(command.call.at));
    append(
        connection,
        &command.call,
        &row.ticket,
        EventKind::TicketDeleted,
        None,
        json!(row.ticket.id),
        Object::new(),
    )?;
    let sql = "UPDATE ticket_attempts SET deleted_at = ?2, ended_at = coalesce(ended_at, ?2),
                   outcome = coalesce(outcome, 'released') WHERE ticket = ?1";
    execute(connection, sql, params![id, at])?;
    execute(connection, "DELETE FROM tickets WHERE id = ?1", [&id])?;
    signals.push(TicketSignal::NotHeld(row.ticket.id));
    signal_end_of_vm(connection, row, false, signals)
}
