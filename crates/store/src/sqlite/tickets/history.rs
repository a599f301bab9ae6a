//! History of tickets, which outlives their deletion.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::Value;
use skep_api::{
    budget::Budget,
    tickets::{Attempt, TicketEvent},
};

use super::{
    super::{
        columns::{Columns, execute, invalid_column, millis, page, query_all},
        error::SqliteError,
        events,
    },
    row::{self, unknown},
};
use crate::{Event, ReadTicketHistory, TicketHistoryPage};

/// Maximum number of attempts in a history.
const MAX_ATTEMPTS: u32 = 1_000;
/// Maximum size of the JSON of a page's events, in bytes. In memory, numbers and empty objects take sixteen times as
/// much.
const PAGE_BYTES: usize = 2 << 20;

pub(in super::super) fn history(
    connection: &Connection,
    query: &ReadTicketHistory,
) -> Result<TicketHistoryPage, SqliteError> {
    let (id, account) = (query.id.to_string(), query.account.to_string());
    let sql = "SELECT * FROM events WHERE ticket = ?1 AND account = ?2 AND sequence > ?3 ORDER BY sequence LIMIT ?4";
    let after = i64::try_from(query.after.unwrap_or(0)).unwrap_or(i64::MAX);
    let (found, more) = page(
        connection,
        sql,
        params![id, account, after, i64::from(query.limit.max(1)) + 1],
        query.limit,
        Budget::new(PAGE_BYTES),
        |row| {
            let event = events::decode(row)?;
            Ok((event.sequence, to_ticket_event(event)?))
        },
    )?;
    let attempts = match query.after {
        None => attempts(connection, &id, &account)?,
        Some(_) => Vec::new(),
    };
    if found.is_empty() && attempts.is_empty() {
        // The events may all have been deleted, so check whether the ticket exists.
        row::of_account(connection, query.account, query.id).map_err(|fault| match fault {
            super::super::error::SqliteError::Refused(_) => unknown(query.id),
            other => other,
        })?;
    }
    let next = found.last().filter(|_| more).map(|(sequence, _)| *sequence);
    let events = found.into_iter().map(|(_, event)| event).collect();
    Ok(TicketHistoryPage { events, attempts, next })
}

fn to_ticket_event(event: Event) -> Result<TicketEvent, SqliteError> {
    let id = event.id().to_string();
    let mut body = event.body;
    let mut take = |field: &str| body.remove(field).unwrap_or(Value::Null);
    let (ticket, actor, changes, attempt) = (take("ticket"), take("actor"), take("changes"), take("attempt"));
    let wrong = |error: serde_json::Error| invalid_column("body", error);
    Ok(TicketEvent {
        id,
        kind: event.kind.as_str().to_owned(),
        at: event.at,
        ticket,
        actor: serde_json::from_value(actor).map_err(wrong)?,
        changes: serde_json::from_value(changes).map_err(wrong)?,
        attempt: serde_json::from_value(attempt).map_err(wrong)?,
        request_id: event.request_id,
    })
}

fn attempts(connection: &Connection, ticket: &str, account: &str) -> Result<Vec<Attempt>, SqliteError> {
    let sql =
        "SELECT * FROM ticket_attempts WHERE ticket = ?1 AND account = ?2 ORDER BY attempt DESC LIMIT ?3";
    let mut attempts = query_all(connection, sql, params![ticket, account, MAX_ATTEMPTS], decode)?;
    attempts.reverse();
    Ok(attempts)
}

fn decode(row: &Columns<'_>) -> Result<Attempt, SqliteError> {
    Ok(Attempt {
        attempt: row.number("attempt")?,
        assignee: row.get("assignee")?,
        vm: row.parse_optional("vm")?,
        claimed_at: row.time("claimed_at")?,
        ended_at: row.optional_time("ended_at")?,
        outcome: row.parse_optional("outcome")?,
        result: row::object(row, "result")?,
    })
}

/// Deletes one batch of attempts of tickets that were deleted before this time.
pub(in super::super) fn delete_attempts(
    connection: &Connection,
    before: Timestamp,
    batch: u32,
) -> Result<usize, SqliteError> {
    let sql = "DELETE FROM ticket_attempts WHERE rowid IN
               (SELECT rowid FROM ticket_attempts WHERE deleted_at < ?1 ORDER BY deleted_at LIMIT ?2)";
    execute(connection, sql, params![millis(before), batch])
}
