//! Health check: proves that the database can be written and read.

use rusqlite::Connection;

use super::{columns::execute, fault::Fault};

/// Writes the current time in seconds. The row changes at most once per second, so that frequent requests to the public
/// health route do not cause disk writes.
pub(super) fn check_write(connection: &Connection) -> Result<(), Fault> {
    execute(
        connection,
        "INSERT INTO meta (name, value) VALUES ('pinged_at', CAST(unixepoch() AS TEXT))
         ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value",
        [],
    )?;
    Ok(())
}

/// Reads the row that [`check_write`] writes.
pub(super) fn check_read(connection: &Connection) -> Result<(), Fault> {
    connection.query_row("SELECT value FROM meta WHERE name = 'pinged_at'", [], |_| Ok(()))?;
    Ok(())
}
