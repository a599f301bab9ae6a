//! The database file: creation with private permissions, connections with the required pragmas, and detection of
//! replacement.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{error::SqliteError, migrations};
use crate::Cause;

/// Page cache of the writer, in KiB. Enough for a change of a ticket on which ten thousand others depend.
const WRITER_CACHE_KIB: i64 = 16_384;

/// A database file, identified by its inode.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    busy_timeout: Duration,
    inode: (u64, u64),
}

impl DatabaseFile {
    /// Locates the file, or creates an empty one with mode 0600. SQLite gives the same mode to the WAL and its index.
    pub(super) fn locate_or_create(path: &Path, busy_timeout: Duration) -> Result<Self, SqliteError> {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => {
                // Sync the directory as well, otherwise a power failure may lose the new entry.
                let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                File::open(folder)?.sync_all()?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { path: path.to_owned(), busy_timeout, inode: inode(path)? })
    }

    /// Locates an existing file; never creates one.
    pub(super) fn locate(path: &Path, busy_timeout: Duration) -> Result<Self, SqliteError> {
        Ok(Self { path: path.to_owned(), busy_timeout, inode: inode(path)? })
    }

    /// Runs `read` on the store at this path, which another process may have open. The result is empty if the file does not
    /// exist, or if its schema version is below `min_version`. Blocks.
    pub(super) fn read_beside_server<T>(
        path: &Path,
        min_version: i64,
        read: impl FnOnce(&Connection) -> Result<Vec<T>, SqliteError>,
    ) -> crate::Result<Vec<T>> {
        if !path.exists() {
            return Ok(Vec::new());
        }
        let outcome = || {
            let connection = Self::locate(path, Duration::from_secs(5))?.reader()?;
            if migrations::version(&connection)? < min_version { Ok(Vec::new()) } else { read(&connection) }
        };
        outcome().map_err(|fault: SqliteError| fault.into_error(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a connection for writing, whose commits are durable when they return.
    pub(super) fn writer(&self) -> Result<Connection, SqliteError> {
        let connection = self.connect()?;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if mode != "wal" {
            return Err(SqliteError::Unavailable(Cause::new(format!(
                "journal mode is `{mode}` where WAL was asked for"
            ))));
        }
        connection.pragma_update(None, "synchronous", "full")?;
        // With SQLite's default of 2 MB, a large command would spill changed pages to the WAL and read them back.
        connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        Ok(connection)
    }

    /// Opens a connection that can only read.
    pub(super) fn reader(&self) -> Result<Connection, SqliteError> {
        let connection = self.connect()?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    /// Opens a connection that keeps the journal mode of the file.
    pub(super) fn connection(&self) -> Result<Connection, SqliteError> {
        self.connect()
    }

    fn connect(&self) -> Result<Connection, SqliteError> {
        // No CREATE: a missing file is an error, not a new store. NO_MUTEX: only one thread at a time uses a
        // connection.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.busy_timeout)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // Temporary files would be in /tmp, where a confined server cannot write, so that large commands would fail.
        connection.pragma_update(None, "temp_store", "memory")?;
        // Otherwise SQLite considers the value bound to `LIMIT` and prepares such statements again at each execution
        // (<https://www.sqlite.org/queryplanner-ng.html#qpstab>).
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }

    /// Checks that the path still refers to the same file. SQLite would continue to write to a deleted or replaced
    /// file, and commits reported as durable would be lost.
    pub(super) fn check_not_replaced(&self) -> Result<(), SqliteError> {
        if inode(&self.path)? == self.inode {
            Ok(())
        } else {
            Err(SqliteError::Unavailable(Cause::new(
                "another file has replaced the database; restart the server",
            )))
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
