//! The proof that the database can be written and read.

use rusqlite::Connection;

use super::{columns::change, fault::Fault};

/// Writes down the second that it is. Within one second the row stays as it is and the disk is left in peace, however often
/// the public health route is asked.
pub(super) fn write_second(connection: &Connection) -> Result<(), Fault> {
    change(
        connection,
        "INSERT INTO meta (name, value) VALUES ('pinged_at', CAST(unixepoch() AS TEXT))
         ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value",
        [],
    )?;
    Ok(())
}

/// Reads what was written last.
pub(super) fn read_second(connection: &Connection) -> Result<(), Fault> {
    connection.query_row("SELECT value FROM meta WHERE name = 'pinged_at'", [], |_| Ok(()))?;
    Ok(())
}
