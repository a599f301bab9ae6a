//! What becomes of old entries and events: they go, a few at a time.

use rusqlite::{Connection, params};

use super::{
    columns::{broken, change, millis, one},
    deliveries,
    fault::Fault,
    run_logs, tickets, vms,
};
use crate::{TrimHistory, Trimmed};

/// The part of the audit that strangers may take: one of so many.
const STRANGERS: u64 = 5;

/// Deletes a few of what is too old, or too much.
pub(super) fn trim(connection: &Connection, command: &TrimHistory) -> Result<Trimmed, Fault> {
    let half = command.bytes / 2;
    let entries = if volume(connection, "strangers")? > half / STRANGERS {
        // First of all: what they are too much may be all that the audit is too much.
        let sql =
            "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE account IS NULL ORDER BY id LIMIT ?1)";
        change(connection, sql, [command.batch])?
    } else if volume(connection, "audit")? > half {
        let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?1)";
        change(connection, sql, [command.batch])?
    } else {
        // Only the oldest are looked at: in the order of ids, times grow but for steps of the clock.
        let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?1) AND at < ?2";
        change(connection, sql, params![command.batch, millis(command.before)])?
    };
    let events = if volume(connection, "events")? > half {
        let sql =
            "DELETE FROM events WHERE sequence IN (SELECT sequence FROM events ORDER BY sequence LIMIT ?1)";
        change(connection, sql, [command.batch])?
    } else {
        let sql = "DELETE FROM events
                   WHERE sequence IN (SELECT sequence FROM events ORDER BY sequence LIMIT ?1) AND at < ?2";
        change(connection, sql, params![command.batch, millis(command.before)])?
    };
    tickets::forget(connection, command.before, command.batch)?;
    let deliveries = deliveries::forget(connection, command.batch)?;
    let vms = vms::forget(connection, command.before, command.batch)? as u64;
    let logs = run_logs::forget(connection, command.before, command.batch)? as u64;
    Ok(Trimmed { entries: entries as u64, events: events as u64, deliveries, vms, logs })
}

/// What a table takes, about, in bytes.
pub(super) fn volume(connection: &Connection, name: &str) -> Result<u64, Fault> {
    let found =
        one(connection, "SELECT bytes FROM volumes WHERE name = ?1", [name], |row| row.number("bytes"))?;
    found.ok_or_else(|| broken("volumes", format!("there is no `{name}`")))
}
