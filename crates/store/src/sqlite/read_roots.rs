//! Reads the roots of all accounts, for a process that confines itself to them before it opens the store.

use std::path::Path;

use super::{accounts, file::DatabaseFile};
use crate::{AccountRoot, Result};

/// Returns the roots of all accounts, or nothing if there is no store yet. Blocks. A server may be running meanwhile.
///
/// # Errors
/// The store cannot be read.
pub fn account_roots(database: &Path) -> Result<Vec<AccountRoot>> {
    // No account has an empty name.
    DatabaseFile::read_beside_server(database, 1, |connection| accounts::roots_of_others(connection, ""))
}
