//! The roots of all accounts, for a process that confines itself to them before it opens the store.

use std::{path::Path, time::Duration};

use super::{fault::Fault, file::DatabaseFile, migrations};
use crate::Result;

/// The roots of all accounts, whether a server runs or not. Blocks. None where there is no store yet.
///
/// # Errors
/// The store cannot be read.
pub fn account_roots(database: &Path) -> Result<Vec<String>> {
    if !database.exists() {
        return Ok(Vec::new());
    }
    look(database).map_err(|fault| fault.into_error(database))
}

fn look(path: &Path) -> std::result::Result<Vec<String>, Fault> {
    let connection = DatabaseFile::find(path, Duration::from_secs(5))?.reader()?;
    if migrations::version(&connection)? == 0 {
        return Ok(Vec::new());
    }
    let sql = "SELECT DISTINCT each.value FROM accounts, json_each(accounts.roots) AS each WHERE deleted_at IS NULL";
    let mut statement = connection.prepare(sql)?;
    let roots = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(roots)
}
