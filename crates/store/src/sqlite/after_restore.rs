//! Releases the tickets of a restored store when it is first opened, because what their holders did since the backup is
//! unknown.

use jiff::Timestamp;
use rusqlite::{Connection, TransactionBehavior};

use super::{
    columns::{execute, query_optional},
    error::SqliteError,
    tickets,
};

/// Releases all tickets that were in progress when the backup was made, unless that is done already.
pub(super) fn release_tickets(connection: &mut Connection) -> Result<(), SqliteError> {
    let marked = "SELECT 1 FROM meta WHERE name = 'restored'";
    // Check without a write transaction, so that opening a store beside a running server does not wait for the write
    // lock.
    if query_optional(connection, marked, [], |_| Ok(()))?.is_none() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if execute(&transaction, "DELETE FROM meta WHERE name = 'restored'", [])? > 0 {
        tickets::release_all(&transaction, Timestamp::now())?;
    }
    Ok(transaction.commit()?)
}
