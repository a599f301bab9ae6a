//! Retention: deletes old audit entries, events and related records in batches.

use rusqlite::{Connection, params};

use super::{
    columns::{execute, invalid_column, millis, query_optional},
    deliveries,
    error::SqliteError,
    run_logs, tickets, vms,
};
use crate::{TrimHistory, Trimmed};

/// Entries without an account may take one part in this many of the audit's space.
const UNATTRIBUTED_DIVISOR: u64 = 5;

/// Deletes one batch of records that are too old or exceed the space limit.
pub(super) fn trim(connection: &Connection, command: &TrimHistory) -> Result<Trimmed, SqliteError> {
    let half = command.bytes / 2;
    let entries = if volume(connection, "strangers")? > half / UNATTRIBUTED_DIVISOR {
        // Checked first, because these entries alone may be the reason that the audit is too large.
        let sql =
            "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE account IS NULL ORDER BY id LIMIT ?1)";
        execute(connection, sql, [command.batch])?
    } else if volume(connection, "audit")? > half {
        let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?1)";
        execute(connection, sql, [command.batch])?
    } else {
        // Only the oldest entries are examined: ids are in the order of time, except for clock adjustments.
        let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?1) AND at < ?2";
        execute(connection, sql, params![command.batch, millis(command.before)])?
    };
    let events = if volume(connection, "events")? > half {
        let sql =
            "DELETE FROM events WHERE sequence IN (SELECT sequence FROM events ORDER BY sequence LIMIT ?1)";
        execute(connection, sql, [command.batch])?
    } else {
        let sql = "DELETE FROM events
                   WHERE sequence IN (SELECT sequence FROM events ORDER BY sequence LIMIT ?1) AND at < ?2";
        execute(connection, sql, params![command.batch, millis(command.before)])?
    };
    tickets::delete_attempts(connection, command.before, command.batch)?;
    let deliveries = deliveries::delete_orphaned(connection, command.batch)?;
    let vms = vms::delete_expired(connection, command.before, command.batch)? as u64;
    let logs = run_logs::delete_expired(connection, command.before, command.batch)? as u64;
    Ok(Trimmed { entries: entries as u64, events: events as u64, deliveries, vms, logs })
}

/// Approximate size of a group of rows, in bytes.
pub(super) fn volume(connection: &Connection, name: &str) -> Result<u64, SqliteError> {
    let found = query_optional(connection, "SELECT bytes FROM volumes WHERE name = ?1", [name], |row| {
        row.number("bytes")
    })?;
    found.ok_or_else(|| invalid_column("volumes", format!("there is no `{name}`")))
}
