//! Backup of a database that may be in use, and restore of a backup.
//!
//! ```text
//! backup   database ── VACUUM INTO ──► skep.db.backup ── checked ──► a file without a name, for the caller to keep
//! restore  caller's file ──► skep.db.restoring ── checked, new epoch ──► database;  the old one ──► skep.db.before-...
//! ```
//! All functions block, and must run as the owner of the database: a file that another user creates beside it would lock its
//! owner out.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use rusqlite::Connection;

use super::{error::SqliteError, file::DatabaseFile, inspect};
use crate::{Cause, Error, Result};

/// How long a backup or restore waits for a writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A complete and verified copy of the store.
#[derive(Debug)]
pub struct Backup {
    /// The copy, positioned at its start. The file is unlinked, so that its space is freed when it is closed.
    pub file: File,
    /// Schema version of the database.
    pub version: i64,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Schema version of the database. An older one is migrated at the next start.
    pub version: i64,
    pub epoch: String,
    /// Path of the replaced database; `None` if there was none.
    pub old: Option<PathBuf>,
}

/// Makes a consistent copy of the store without blocking readers and writers. Needs disk space for a second store
/// beside the first.
///
/// # Errors
/// There is no database, it cannot be read or is damaged, the disk is full, or another backup is running.
pub fn backup(database: &Path) -> Result<Backup> {
    make_backup(database).map_err(|fault| fault.into_error(database))
}

fn make_backup(database: &Path) -> std::result::Result<Backup, SqliteError> {
    let source = DatabaseFile::locate(database, BUSY_TIMEOUT)?.connection()?;
    let staged = StagingFile::create_locked(beside(database, "backup"))?;
    // `VACUUM INTO` accepts an empty file. One that SQLite creates could be readable by others.
    staged.file.set_len(0)?;
    source.execute("VACUUM INTO ?1", [staged.path.to_string_lossy()])?;
    let found = inspect::run(&staged.path, BUSY_TIMEOUT)?;
    found.require_sound(database)?;
    let file = File::open(&staged.path)?;
    let size_bytes = file.metadata()?.len();
    Ok(Backup { file, version: found.version, size_bytes })
}

/// Replaces the database by a copy and starts a new epoch, so that older event cursors are recognised as invalid.
/// `name` names the copy in errors. The caller must ensure that no server uses the database.
///
/// # Errors
/// [`Error::NewerVersion`], [`Error::NotABackup`], or a file cannot be read or written. The database is then unchanged.
pub fn restore(database: &Path, copy: &mut dyn Read, name: &Path) -> Result<Restored> {
    let staged = StagingFile::create_locked(beside(database, "restoring"))
        .map_err(|fault| fault.into_error(database))?;
    fill(&staged, copy).map_err(|fault| fault.into_error(database))?;
    let found = inspect::run(&staged.path, BUSY_TIMEOUT).map_err(|fault| not_a_backup(name, fault))?;
    found.require_sound(name).map_err(|fault| fault.into_error(name))?;
    let put = || {
        let epoch = begin_epoch(&staged.path)?;
        staged.file.sync_all()?;
        let old = replace(database, &staged.path)?;
        Ok(Restored { version: found.version, epoch, old })
    };
    put().map_err(|fault: SqliteError| fault.into_error(database))
}

fn not_a_backup(name: &Path, fault: SqliteError) -> Error {
    match fault {
        SqliteError::Driver(error) => {
            Error::NotABackup { path: name.to_owned(), why: Cause::from_error(&error).to_string() }
        }
        other => other.into_error(name),
    }
}

fn fill(staged: &StagingFile, copy: &mut dyn Read) -> std::result::Result<(), SqliteError> {
    staged.file.set_len(0)?;
    for rest in ["-wal", "-shm", "-journal"] {
        remove(&with_suffix(&staged.path, rest))?;
    }
    io::copy(copy, &mut &staged.file)?;
    Ok(())
}

/// Starts a new epoch and returns it. Epochs are random, as in the first migration: restoring a backup twice must not
/// give the same epoch twice.
fn begin_epoch(path: &Path) -> std::result::Result<String, SqliteError> {
    let connection = DatabaseFile::locate(path, BUSY_TIMEOUT)?.connection()?;
    // Without a WAL, the copy is a single file, which can be renamed atomically.
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "delete", |row| row.get(0))?;
    if mode != "delete" {
        return Err(SqliteError::Unavailable(Cause::new(format!(
            "the journal mode of the copy is still `{mode}`"
        ))));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    // The next process that opens the store releases held tickets; this copy may have a schema without tickets.
    connection.execute_batch(
        "INSERT OR REPLACE INTO meta (name, value)
         SELECT 'epoch_began', coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0);
         INSERT OR REPLACE INTO meta (name, value) VALUES ('restored', 'yes');",
    )?;
    let sql = "UPDATE meta SET value = lower(hex(randomblob(8))) WHERE name = 'epoch' RETURNING value";
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// Replaces the database and returns the new path of the old one. At every moment a database exists at the path, and
/// each old file has a name.
fn replace(database: &Path, new: &Path) -> std::result::Result<Option<PathBuf>, SqliteError> {
    let wal = with_suffix(database, "-wal");
    // With an empty WAL nothing is lost between the steps below. The checkpoint may fail if the database is damaged.
    if let Ok(connection) = Connection::open(database) {
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    let old = link_old(database)?;
    if let (Some(old), true) = (&old, wal.exists()) {
        fs::hard_link(&wal, with_suffix(old, "-wal"))?;
    }
    sync_folder(database)?;
    remove(&wal)?;
    remove(&with_suffix(database, "-shm"))?;
    fs::rename(new, database)?;
    sync_folder(database)?;
    Ok(old)
}

/// Creates a second, unused name for the database.
fn link_old(database: &Path) -> std::result::Result<Option<PathBuf>, SqliteError> {
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    for number in 1_u32.. {
        let more = if number == 1 { String::new() } else { format!("-{number}") };
        let old = beside(database, &format!("before-restore-{now}{more}"));
        match fs::hard_link(database, &old) {
            Ok(()) => return Ok(Some(old)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;

/// A temporary file, locked against other processes. It is removed on drop, unless it was renamed.
struct StagingFile {
    file: File,
    path: PathBuf,
}

impl StagingFile {
    fn create_locked(path: PathBuf) -> std::result::Result<Self, SqliteError> {
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let busy =
                        format!("another process writes {}; wait until it has finished", path.display());
                    return Err(SqliteError::Unavailable(Cause::new(busy)));
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // The previous owner may have removed the file between `open` and `try_lock`.
            if fs::metadata(&path)
                .is_ok_and(|found| file.metadata().is_ok_and(|own| own.ino() == found.ino()))
            {
                return Ok(Self { file, path });
            }
        }
    }
}

impl Drop for StagingFile {
    fn drop(&mut self) {
        let own = self.file.metadata().map(|own| own.ino()).ok();
        if own.is_some() && fs::metadata(&self.path).map(|found| found.ino()).ok() == own {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn beside(database: &Path, word: &str) -> PathBuf {
    with_suffix(database, &format!(".{word}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Syncs the directory of a file, without which ext4 may lose a new name in a power failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
        .sync_all()
}
