//! The limit of open tickets of an account.

use rusqlite::Connection;
use skep_api::AccountId;
use skep_tickets::limits::MAX_OPEN_TICKETS;

use super::{super::error::SqliteError, metrics::counts};
use crate::Error;

/// Checks that an account may have this many open tickets more.
///
/// # Errors
/// [`Error::TooManyTickets`].
pub(super) fn check(connection: &Connection, account: AccountId, more: u64) -> Result<(), SqliteError> {
    let counts = counts(connection, &account.to_string())?;
    let (open, most) = (counts.waiting + counts.ready + counts.in_progress, MAX_OPEN_TICKETS);
    if open + more > most {
        return Err(Error::TooManyTickets { open, more, most }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::migrations::migrate;

    #[test]
    fn tickets_that_are_neither_completed_nor_failed_count() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let (full, other) = (AccountId::generate(), AccountId::generate());
        for (stage, tickets) in [(0, 30_000), (1, 40_000), (2, 29_998), (3, 500_000), (4, 500_000)] {
            let sql = "INSERT INTO ticket_counts (account, stage, tickets) VALUES (?1, ?2, ?3)";
            connection.execute(sql, (full.to_string(), stage, tickets)).unwrap();
        }
        check(&connection, full, 2).unwrap();
        let SqliteError::Refused(refused) = check(&connection, full, 3).unwrap_err() else {
            panic!("another error")
        };
        let refused = refused.to_string();
        assert!(["99998", "100000", "3 more"].iter().all(|part| refused.contains(part)), "{refused}");
        check(&connection, other, 100_000).unwrap();
        assert!(check(&connection, other, 100_001).is_err());
    }
}
