//! Summaries of tickets, which are read without the texts of any size, and the counts of tickets.

use std::sync::LazyLock;

use jiff::Timestamp;
use rusqlite::Connection;
use skep_api::{
    AccountId, TicketId,
    budget::json_len,
    tickets::{Ticket as Record, TicketSummary, TicketTotals},
};

use super::{
    super::{
        columns::{query_all, query_optional},
        error::SqliteError,
        table::{ColumnSet, select_sql},
    },
    fields::{Fields, record, summary},
    metrics::counts,
    row::{find, size_bytes},
    row_columns::{IdentityColumns, StateColumns},
};

/// A form in which tickets are listed.
pub(super) trait Listed: Sized {
    /// Reads a ticket of any account.
    fn read(connection: &Connection, id: TicketId, at: Timestamp) -> Result<Option<Self>, SqliteError>;
    /// The size in an answer, in bytes.
    fn size_bytes(&self) -> usize;
}

impl Listed for Record {
    fn read(connection: &Connection, id: TicketId, at: Timestamp) -> Result<Option<Self>, SqliteError> {
        find(connection, id)?.map(|row| record(connection, row, at)).transpose()
    }

    fn size_bytes(&self) -> usize {
        size_bytes(self)
    }
}

impl Listed for TicketSummary {
    fn read(connection: &Connection, id: TicketId, at: Timestamp) -> Result<Option<Self>, SqliteError> {
        static SELECT: LazyLock<String> = LazyLock::new(|| {
            let columns = [IdentityColumns::columns(), StateColumns::columns(), Fields::columns()];
            select_sql("tickets", &columns) + " WHERE id = ?"
        });
        let row = query_optional(connection, &SELECT, [id.to_string()], |row| {
            Ok((IdentityColumns::read(row)?, StateColumns::read(row)?, Fields::read(row)?))
        })?;
        row.map(|(identity, state, fields)| summary(connection, identity, state, fields, at)).transpose()
    }

    fn size_bytes(&self) -> usize {
        json_len(self)
    }
}

/// Returns how many tickets an account has, from counters; of the tickets only those are counted that wait for a time
/// alone.
pub(in super::super) fn totals(
    connection: &Connection,
    account: AccountId,
) -> Result<TicketTotals, SqliteError> {
    let account = account.to_string();
    let counts = counts(connection, &account)?;
    let waiting = query_all(connection, DELAYED, [&account], |row| row.number::<u64>("tickets"))?;
    let waiting = waiting.first().copied().unwrap_or(0).min(counts.waiting);
    Ok(TicketTotals {
        pending: counts.waiting + counts.ready,
        in_progress: counts.in_progress,
        completed: counts.completed,
        failed: counts.failed,
        ready: counts.ready,
        blocked: counts.waiting - waiting,
        waiting,
    })
}

const DELAYED: &str = "SELECT count(*) AS tickets FROM tickets
                       WHERE account = ?1 AND waiting = 1 AND unmet = 0";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::migrations::migrate;

    #[test]
    fn delayed_tickets_are_counted_in_an_index() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {DELAYED}");
        let mut statement = connection.prepare(&sql).unwrap();
        let plan: Vec<String> =
            statement.query_map(["a"], |row| row.get(3)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(plan.len(), 1, "{plan:?}");
        assert!(plan[0].contains("COVERING INDEX tickets_delayed"), "{plan:?}");
    }
}
