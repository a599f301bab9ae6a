//! Reads the roots of all accounts, for a process that confines itself to them before it opens the store.

use std::{path::Path, time::Duration};

use super::{accounts, error::SqliteError, file::DatabaseFile, migrations};
use crate::{AccountRoot, Result};

/// Returns the roots of all accounts, or nothing if there is no store yet. Blocks. A server may be running meanwhile.
///
/// # Errors
/// The store cannot be read.
pub fn account_roots(database: &Path) -> Result<Vec<AccountRoot>> {
    if !database.exists() {
        return Ok(Vec::new());
    }
    read_roots(database).map_err(|fault| fault.into_error(database))
}

fn read_roots(path: &Path) -> std::result::Result<Vec<AccountRoot>, SqliteError> {
    let connection = DatabaseFile::locate(path, Duration::from_secs(5))?.reader()?;
    if migrations::version(&connection)? == 0 {
        return Ok(Vec::new());
    }
    // No account has an empty name.
    accounts::roots_of_others(&connection, "")
}
