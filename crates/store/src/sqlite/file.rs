//! The database file: made for its owner alone, opened with our settings, watched while it is in use.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::fault::Fault;
use crate::Cause;

/// What the writer's pages may take in memory, in KiB: those of a ticket that ten thousand wait for are about as many.
const WRITERS_CACHE_KIB: i64 = 16_384;

/// One database file, known by its inode.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    busy_timeout: Duration,
    inode: (u64, u64),
}

impl DatabaseFile {
    /// Finds the file, or makes an empty one with mode 0600. SQLite gives its mode to the files beside it.
    pub(super) fn find_or_make(path: &Path, busy_timeout: Duration) -> Result<Self, Fault> {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => {
                // The folder too: a power cut may else lose the new name.
                let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                File::open(folder)?.sync_all()?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { path: path.to_owned(), busy_timeout, inode: inode(path)? })
    }

    /// Finds the file. One that is not there is never made.
    pub(super) fn find(path: &Path, busy_timeout: Duration) -> Result<Self, Fault> {
        Ok(Self { path: path.to_owned(), busy_timeout, inode: inode(path)? })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A connection that writes: every commit is on the disk when it returns.
    pub(super) fn writer(&self) -> Result<Connection, Fault> {
        let connection = self.connect()?;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if mode != "wal" {
            return Err(Fault::Away(Cause::text(format!(
                "journal mode is `{mode}` where WAL was asked for"
            ))));
        }
        connection.pragma_update(None, "synchronous", "full")?;
        // With SQLite's 2 MB, pages that a large command changes go to the log and come back before it is through.
        connection.pragma_update(None, "cache_size", -WRITERS_CACHE_KIB)?;
        Ok(connection)
    }

    /// A connection that only reads.
    pub(super) fn reader(&self) -> Result<Connection, Fault> {
        let connection = self.connect()?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    /// A connection that takes the file as it is.
    pub(super) fn plain(&self) -> Result<Connection, Fault> {
        self.connect()
    }

    fn connect(&self) -> Result<Connection, Fault> {
        // Never CREATE: a file that vanished is a fault, not a fresh store. Each connection stays with one thread at a time.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.busy_timeout)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // SQLite would make files of its own in /tmp, which a confined server cannot, and refuse large commands.
        connection.pragma_update(None, "temp_store", "memory")?;
        // Else SQLite looks at what is bound to `LIMIT`, and so compiles each such statement anew whenever it runs
        // (<https://www.sqlite.org/queryplanner-ng.html#qpstab>).
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }

    /// Checks that the file has its name still. SQLite would go on writing to one that was deleted or replaced, and all that
    /// it called durable would be gone.
    pub(super) fn check_in_place(&self) -> Result<(), Fault> {
        if inode(&self.path)? == self.inode {
            Ok(())
        } else {
            Err(Fault::Away(Cause::text("another file took the place of the database; restart the server")))
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
