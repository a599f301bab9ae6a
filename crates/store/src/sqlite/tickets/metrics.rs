//! Metrics about tickets, from counters that triggers maintain: a query reads a few rows for each account.

use jiff::Timestamp;
use rusqlite::{Connection, params};
use skep_api::{AccountId, tickets::AttemptOutcome};

use super::super::{
    columns::{invalid_column, query_all, query_optional},
    error::SqliteError,
};
use crate::{TicketCounts, TicketMetrics};

/// Maximum number of accounts in the result.
const MAX_ACCOUNTS: u32 = 1_000;

/// Returns the metrics of one account, or of all that are not deleted; beyond the maximum, of the oldest.
pub(in super::super) fn metrics(
    connection: &Connection,
    account: Option<AccountId>,
) -> Result<Vec<TicketMetrics>, SqliteError> {
    let sql = "SELECT id, name FROM accounts WHERE deleted_at IS NULL AND (?1 IS NULL OR id = ?1) ORDER BY id LIMIT ?2";
    let account = account.map(|account| account.to_string());
    let accounts = query_all(connection, sql, params![account, MAX_ACCOUNTS], |row| {
        Ok((row.get::<String>("id")?, row.get::<String>("name")?))
    })?;
    accounts.into_iter().map(|(id, name)| of_account(connection, &id, name)).collect()
}

/// Returns the number of tickets of an account in each stage, from the counters.
pub(super) fn counts(connection: &Connection, id: &str) -> Result<TicketCounts, SqliteError> {
    let mut counts = TicketCounts::default();
    let sql = "SELECT stage, tickets FROM ticket_counts WHERE account = ?1";
    let stages =
        query_all(connection, sql, [id], |row| Ok((row.get::<i64>("stage")?, row.number("tickets")?)))?;
    for (stage, tickets) in stages {
        let count = match stage {
            0 => &mut counts.waiting,
            1 => &mut counts.ready,
            2 => &mut counts.in_progress,
            3 => &mut counts.completed,
            4 => &mut counts.failed,
            other => return Err(invalid_column("stage", format!("unknown value {other}"))),
        };
        *count = tickets;
    }
    Ok(counts)
}

fn of_account(connection: &Connection, id: &str, account: String) -> Result<TicketMetrics, SqliteError> {
    let counts = counts(connection, id)?;
    let sql = "SELECT outcome, attempts FROM ticket_outcomes WHERE account = ?1";
    let outcomes = query_all(connection, sql, [id], |row| {
        Ok((row.parse::<AttemptOutcome>("outcome")?, row.number::<u64>("attempts")?))
    })?;
    let oldest_ready = oldest_ready(connection, id)?;
    Ok(TicketMetrics { account, counts, outcomes, oldest_ready })
}

fn oldest_ready(connection: &Connection, account: &str) -> Result<Option<Timestamp>, SqliteError> {
    query_optional(connection, OLDEST_READY, [account], |row| row.time("ready_at"))
}

const OLDEST_READY: &str = "SELECT ready_at FROM tickets WHERE account = ?1 AND ready_at IS NOT NULL
                            ORDER BY ready_at LIMIT 1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::migrations::migrate;

    #[test]
    fn the_oldest_ready_ticket_is_the_first_of_an_index() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {OLDEST_READY}");
        let mut statement = connection.prepare(&sql).unwrap();
        let plan: Vec<String> =
            statement.query_map(["a"], |row| row.get(3)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(plan.len(), 1, "{plan:?}");
        assert!(plan[0].starts_with("SEARCH") && plan[0].contains("tickets_ready_since"), "{plan:?}");
    }
}
