//! Stored tickets, and who may read them.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_api::{
    AccountId, TicketId, VmId,
    budget::{estimated_memory, json_len},
    tickets::{Blocker, Object, Ticket as Record, Why},
};
use skep_tickets::{Ticket, limits};

use super::{
    super::{
        columns::{Columns, invalid_column, query_all, query_optional},
        error::SqliteError,
    },
    dependencies,
    fields::{Fields, record},
    row_columns,
};
use crate::{Error, TicketCall};

#[derive(Debug, Clone)]
pub(super) struct Row {
    /// State for the transition rules. At most [`limits::MAX_NAMED_TICKETS`] of the blockers are named.
    pub(super) ticket: Ticket,
    pub(super) account: AccountId,
    pub(super) fields: Fields,
    pub(super) beats: u64,
    pub(super) progress: Option<String>,
    pub(super) version: u64,
    /// When the ticket became claimable; `None` if it is not.
    pub(super) ready_at: Option<Timestamp>,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

pub(in super::super) fn read(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
    at: Timestamp,
) -> Result<Record, SqliteError> {
    let row = of_account(connection, account, id)?;
    record(connection, row, at)
}

/// Returns the record of a ticket that a VM may read: one that it holds or held, or a direct dependency of such a
/// ticket.
pub(in super::super) fn read_of_vm(
    connection: &Connection,
    account: AccountId,
    vm: VmId,
    id: TicketId,
    at: Timestamp,
) -> Result<Record, SqliteError> {
    let row = of_account(connection, account, id)?;
    let sql = "SELECT 1 FROM ticket_attempts WHERE ticket = ?1 AND vm = ?2
               UNION ALL
               SELECT 1 FROM ticket_dependencies AS d JOIN ticket_attempts AS a ON a.ticket = d.dependent
               WHERE d.prerequisite = ?1 AND a.vm = ?2
               LIMIT 1";
    let known = query_optional(connection, sql, [id.to_string(), vm.to_string()], |_| Ok(()))?;
    known.ok_or_else(|| unknown(id))?;
    record(connection, row, at)
}

/// Returns why a ticket is not ready or not progressing.
pub(in super::super) fn why(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
    at: Timestamp,
) -> Result<Why, SqliteError> {
    let mut row = of_account(connection, account, id)?;
    row.ticket.blockers.named = dependencies::blockers(connection, id, limits::MAX_DEPENDENCIES)?;
    Ok(skep_tickets::why(&row.ticket, at))
}

/// Returns a ticket that the caller may act on. For a key that is bound to a VM, that is a ticket that the VM holds or
/// held.
pub(super) fn find_for_caller(
    connection: &Connection,
    call: &TicketCall,
    id: TicketId,
) -> Result<Row, SqliteError> {
    let row = of_account(connection, call.account, id)?;
    if let Some(vm) = call.vm {
        let sql = "SELECT 1 FROM ticket_attempts WHERE ticket = ?1 AND vm = ?2 LIMIT 1";
        let own = query_optional(connection, sql, [id.to_string(), vm.to_string()], |_| Ok(()))?;
        own.ok_or_else(|| unknown(id))?;
    }
    Ok(row)
}

pub(super) fn of_account(
    connection: &Connection,
    account: AccountId,
    id: TicketId,
) -> Result<Row, SqliteError> {
    find(connection, id)?.filter(|row| row.account == account).ok_or_else(|| unknown(id))
}

pub(super) fn unknown(id: TicketId) -> SqliteError {
    Error::UnknownTicket { id: id.to_string() }.into()
}

/// A ticket of any account.
pub(super) fn find(connection: &Connection, id: TicketId) -> Result<Option<Row>, SqliteError> {
    let Some(mut row) = row_columns::find(connection, id)? else { return Ok(None) };
    if row.ticket.blockers.total > 0 {
        row.ticket.blockers.named = dependencies::blockers(connection, id, limits::MAX_NAMED_TICKETS)?;
    }
    Ok(Some(row))
}

/// Fails unless the version of the ticket is one of the expected ones.
pub(super) fn check_version(row: &Row, expected: Option<&[u64]>) -> Result<(), SqliteError> {
    match expected {
        Some(expected) if !expected.contains(&row.version) => {
            Err(Error::VersionStale { id: row.ticket.id, version: row.version }.into())
        }
        _ => Ok(()),
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Decodes a nullable JSON object.
pub(super) fn object(row: &Columns<'_>, column: &str) -> Result<Option<Object>, SqliteError> {
    let text = row.get::<Option<String>>(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| invalid_column(column, error))).transpose()
}

/// Returns the tickets of a query that selects `id` and `status`.
pub(super) fn blockers(
    connection: &Connection,
    sql: &str,
    id: TicketId,
    limit: usize,
) -> Result<Vec<Blocker>, SqliteError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    query_all(connection, sql, params![id.to_string(), limit], |row| {
        Ok(Blocker { id: row.parse("id")?, status: row.parse("status")? })
    })
}

/// Size of a record in an answer, in bytes: its JSON plus the memory of its objects.
pub(super) fn size_bytes(ticket: &Record) -> usize {
    let objects = [&ticket.metadata, &ticket.result].into_iter().flatten();
    json_len(ticket) + objects.flat_map(Object::values).map(estimated_memory).sum::<usize>()
}
