//! Health check: proves that the database can be written and read.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use super::{SqliteStore, columns::execute, error::SqliteError};
use crate::{Cause, Error, HealthStore};

#[async_trait]
impl HealthStore for SqliteStore {
    async fn ping(&self, limit: Duration) -> crate::Result<()> {
        let both = async {
            self.writer.run(check_write).await?;
            self.readers.run(check_read).await
        };
        tokio::time::timeout(limit, both).await.unwrap_or_else(|_| {
            let source = Cause::new(format!("no answer within {} ms", limit.as_millis()));
            Err(Error::Unavailable { path: self.path.clone(), source })
        })
    }
}

/// Writes the current time in seconds. The row changes at most once per second, so that frequent requests to the public
/// health route do not cause disk writes.
fn check_write(connection: &Connection) -> Result<(), SqliteError> {
    execute(
        connection,
        "INSERT INTO meta (name, value) VALUES ('pinged_at', CAST(unixepoch() AS TEXT))
         ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value",
        [],
    )?;
    Ok(())
}

/// Reads the row that [`check_write`] writes.
fn check_read(connection: &Connection) -> Result<(), SqliteError> {
    connection.query_row("SELECT value FROM meta WHERE name = 'pinged_at'", [], |_| Ok(()))?;
    Ok(())
}
