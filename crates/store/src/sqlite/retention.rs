//! Retention: deletes old audit entries, events and related records in batches.

use rusqlite::{Connection, params};

use super::{
    columns::{Columns, execute, millis, query_all, query_optional, signed},
    deliveries,
    error::SqliteError,
    run_logs, tickets, vms,
};
use crate::{TrimHistory, Trimmed};

/// Entries without an account may take one part in this many of the audit's space.
const UNATTRIBUTED_DIVISOR: u64 = 5;
/// What `history` has for the account of these entries, and for all accounts.
const NO_ACCOUNT: &str = "";

/// Deletes one batch of records that are too old or exceed the space limit.
pub(super) fn trim(connection: &Connection, command: &TrimHistory) -> Result<Trimmed, SqliteError> {
    let entries = trim_audit(connection, command)? as u64;
    let deleted = trim_events(connection, command)?;
    let events = deleted.len() as u64;
    tickets::delete_attempts(connection, command.before, command.batch)?;
    let deliveries = deliveries::delete_of_events(connection, &deleted)?
        + deliveries::delete_orphaned(connection, command.batch)?;
    let vms = vms::delete_expired(connection, command.before, command.batch)? as u64;
    let logs = run_logs::delete_expired(connection, command.before, command.batch)? as u64;
    delete_unused_sums(connection)?;
    Ok(Trimmed { entries, events, deliveries, vms, logs })
}

fn trim_audit(connection: &Connection, command: &TrimHistory) -> Result<usize, SqliteError> {
    let half = command.bytes / 2;
    // Checked first, because these entries alone may be the reason that the audit is too large.
    let account = if unattributed(connection)? > half / UNATTRIBUTED_DIVISOR {
        Some(NO_ACCOUNT.to_owned())
    } else if volume(connection, "audit")? > half {
        largest(connection, "audit")?
    } else {
        None
    };
    match account {
        Some(account) => {
            let sql = "DELETE FROM audit
                       WHERE id IN (SELECT id FROM audit WHERE account IS nullif(?2, '') ORDER BY id LIMIT ?1)";
            execute(connection, sql, params![command.batch, account])
        }
        None => {
            // Only the oldest entries are examined: ids are in the order of time, except for clock adjustments.
            let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT ?1) AND at < ?2";
            execute(connection, sql, params![command.batch, millis(command.before)])
        }
    }
}

/// Returns the sequences of the deleted events.
fn trim_events(connection: &Connection, command: &TrimHistory) -> Result<Vec<u64>, SqliteError> {
    let too_many = volume(connection, "events")? > command.bytes / 2;
    let account = if too_many { largest(connection, "events")? } else { None };
    let sequence = |row: &Columns<'_>| row.number::<u64>("sequence");
    let (account, deleted) = match account {
        Some(account) => {
            let sql = "DELETE FROM events
                       WHERE sequence IN (SELECT sequence FROM events WHERE account = ?2 ORDER BY sequence LIMIT ?1)
                       RETURNING sequence";
            let deleted = query_all(connection, sql, params![command.batch, account], sequence)?;
            (account, deleted)
        }
        None => {
            let sql = "DELETE FROM events
                       WHERE sequence IN (SELECT sequence FROM events ORDER BY sequence LIMIT ?1) AND at < ?2
                       RETURNING sequence";
            let deleted =
                query_all(connection, sql, params![command.batch, millis(command.before)], sequence)?;
            (NO_ACCOUNT.to_owned(), deleted)
        }
    };
    // Readers learn that these events are gone, although older ones of other accounts may not be.
    if let Some(newest) = deleted.iter().max() {
        let sql =
            "UPDATE history SET trimmed_to = max(trimmed_to, ?2) WHERE account = ?1 AND kind = 'events'";
        execute(connection, sql, params![account, signed(*newest)?])?;
    }
    Ok(deleted)
}

/// The account whose history of this kind takes the most. `None` without history.
fn largest(connection: &Connection, kind: &str) -> Result<Option<String>, SqliteError> {
    let sql = "SELECT account FROM history WHERE kind = ?1 AND bytes > 0 ORDER BY bytes DESC LIMIT 1";
    query_optional(connection, sql, [kind], |row| row.get("account"))
}

/// Deletes the sums of accounts without history, of which no reader has to know what is gone.
fn delete_unused_sums(connection: &Connection) -> Result<(), SqliteError> {
    let sql = "DELETE FROM history
               WHERE account <> '' AND bytes <= 0
                   AND trimmed_to <= (SELECT trimmed_to FROM history WHERE account = '' AND kind = 'events')";
    execute(connection, sql, [])?;
    Ok(())
}

/// Approximate size of all history of a kind, in bytes.
pub(super) fn volume(connection: &Connection, kind: &str) -> Result<u64, SqliteError> {
    let sql = "SELECT coalesce(sum(bytes), 0) AS bytes FROM history WHERE kind = ?1";
    Ok(query_optional(connection, sql, [kind], |row| row.number("bytes"))?.unwrap_or(0))
}

/// Approximate size of the audit entries without an account, in bytes.
fn unattributed(connection: &Connection) -> Result<u64, SqliteError> {
    let sql = "SELECT bytes FROM history WHERE kind = 'audit' AND account = ''";
    Ok(query_optional(connection, sql, [], |row| row.number("bytes"))?.unwrap_or(0))
}
