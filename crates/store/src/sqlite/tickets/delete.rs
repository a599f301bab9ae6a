//! Deletion of tickets. Their history is kept.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};
use serde_json::json;
use skep_api::{
    TicketId,
    tickets::{Blocker, DeletedTicket, Object, TicketStatus},
};
use skep_tickets::{State, limits, readied};

use super::{
    super::{
        columns::{all, change, millis},
        fault::Fault,
    },
    Told,
    apply::{Change, append, apply, end_vm_of_attempt},
    change::without,
    dependencies,
    row::{Row, check_version, find, reached},
};
use crate::{DeleteTicket, Dependents, Error, EventKind, TicketNews};

pub(in super::super) fn delete(
    connection: &Connection,
    command: &DeleteTicket,
) -> Result<Told<DeletedTicket>, Fault> {
    let row = reached(connection, &command.call, command.id)?;
    check_version(&row, command.expected.as_deref())?;
    check_holder(&row, command)?;
    let mut news = Vec::new();
    let unfinished = dependents(connection, command.id, true)?;
    match command.dependents {
        Dependents::Refuse if !unfinished.is_empty() => return Err(refused(command.id, &unfinished)),
        Dependents::Refuse | Dependents::Detach => {}
        Dependents::Delete => delete_those(connection, command, &mut news)?,
    }
    detach(connection, command, &row, &mut news)?;
    remove(connection, command, &row, &mut news)?;
    Ok((DeletedTicket { id: command.id, deleted: true }, news))
}

fn check_holder(row: &Row, command: &DeleteTicket) -> Result<(), Fault> {
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

fn refused(id: TicketId, unfinished: &[Blocker]) -> Fault {
    let dependents = unfinished.iter().take(limits::NAMED).copied().collect();
    Error::HasDependents { id, total: unfinished.len(), dependents }.into()
}

/// Returns the dependents of a ticket that are not completed; with `unfinished`, failed ones are excluded too.
fn dependents(connection: &Connection, id: TicketId, unfinished: bool) -> Result<Vec<Blocker>, Fault> {
    let sql = "SELECT t.id, t.status FROM ticket_dependencies AS d JOIN tickets AS t ON t.id = d.dependent
               WHERE d.prerequisite = ?1 AND t.status <> 'completed' AND (NOT ?2 OR t.status <> 'failed')
               ORDER BY d.dependent";
    all(connection, sql, params![id.to_string(), unfinished], |row| {
        Ok(Blocker { id: row.word("id")?, status: row.word("status")? })
    })
}

/// Deletes the unfinished tickets that depend on the ticket of the command, recursively.
fn delete_those(
    connection: &Connection,
    command: &DeleteTicket,
    news: &mut Vec<TicketNews>,
) -> Result<(), Fault> {
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
        detach(connection, command, &row, news)?;
        remove(connection, command, &row, news)?;
    }
    Ok(())
}

/// Removes a ticket from the dependencies of tickets that are not completed.
fn detach(
    connection: &Connection,
    command: &DeleteTicket,
    row: &Row,
    news: &mut Vec<TicketNews>,
) -> Result<(), Fault> {
    let completed = row.ticket.status() == TicketStatus::Completed;
    if !completed {
        // Tickets that were completed before this dependency keep their record, but their counter must be correct.
        let sql = "UPDATE tickets SET unmet = unmet - 1 WHERE status = 'completed'
                   AND id IN (SELECT dependent FROM ticket_dependencies WHERE prerequisite = ?1)";
        change(connection, sql, [row.ticket.id.to_string()])?;
    }
    for one in dependents(connection, row.ticket.id, false)? {
        let Some(before) = find(connection, one.id)? else { continue };
        let old = dependencies::of(connection, one.id)?;
        let sql = "DELETE FROM ticket_dependencies WHERE dependent = ?1 AND prerequisite = ?2";
        change(connection, sql, [one.id.to_string(), row.ticket.id.to_string()])?;
        let new: Vec<TicketId> = old.iter().copied().filter(|id| *id != row.ticket.id).collect();
        let mut edited = before.clone();
        edited.ticket = without(&before.ticket, completed);
        let steps = readied(Some(&before.ticket), &edited.ticket, command.call.at).into_iter().collect();
        let edits = Object::from_iter([("dependencies".to_owned(), json!([old, new]))]);
        apply(connection, &command.call, Change { before: &before, edited, edits, steps }, news)?;
    }
    Ok(())
}

fn remove(
    connection: &Connection,
    command: &DeleteTicket,
    row: &Row,
    news: &mut Vec<TicketNews>,
) -> Result<(), Fault> {
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
    change(connection, sql, params![id, at])?;
    change(connection, "DELETE FROM tickets WHERE id = ?1", [&id])?;
    news.push(TicketNews::Free(row.ticket.id));
    end_vm_of_attempt(connection, row, false, news)
}
