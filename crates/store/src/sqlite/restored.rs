//! What the first to open a restored store does: nobody knows what those who held tickets did since the backup.

use jiff::Timestamp;
use rusqlite::{Connection, TransactionBehavior};

use super::{
    columns::{change, one},
    fault::Fault,
    tickets,
};

/// Gives back all that was held when the backup was made, once.
pub(super) fn settle(connection: &mut Connection) -> Result<(), Fault> {
    let marked = "SELECT 1 FROM meta WHERE name = 'restored'";
    // Whoever opens a store beside a server must not wait for its turn to write.
    if one(connection, marked, [], |_| Ok(()))?.is_none() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if change(&transaction, "DELETE FROM meta WHERE name = 'restored'", [])? > 0 {
        tickets::release_all(&transaction, Timestamp::now())?;
    }
    Ok(transaction.commit()?)
}
