//! Copies of the database: one made while it serves, and one put in its place.
//!
//! ```text
//! backup   database ── VACUUM INTO ──► skep.db.backup ── checked ──► a file without a name, for the caller to keep
//! restore  caller's file ──► skep.db.restoring ── checked, new epoch ──► database;  the old one ──► skep.db.before-...
//! ```
//! Everything here blocks, and is to be done as the owner of the database: a file that somebody else leaves beside it would
//! lock its owner out.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use rusqlite::Connection;

use super::{fault::Fault, file::DatabaseFile, inspect};
use crate::{Cause, Error, Result};

/// How long a copy waits for a writer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A copy of the store, whole and checked.
#[derive(Debug)]
pub struct Backup {
    /// The copy, at its beginning. It has no name any more: nothing of it is left where nobody keeps it.
    pub file: File,
    /// The version of the database.
    pub version: i64,
    /// Its size.
    pub size_bytes: u64,
}

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The version of the database; an older one is migrated by the next start.
    pub version: i64,
    /// Its new epoch.
    pub epoch: String,
    /// Where the database lies that it replaced; `None` where there was none.
    pub old: Option<PathBuf>,
}

/// Copies the store as it is at one moment, also while a server writes to it: readers and writers go on meanwhile. Needs room
/// for a second store beside the first.
///
/// # Errors
/// There is no database, it cannot be read or is damaged, there is no room, or another backup is under way.
pub fn backup(database: &Path) -> Result<Backup> {
    make_backup(database).map_err(|fault| fault.into_error(database))
}

fn make_backup(database: &Path) -> std::result::Result<Backup, Fault> {
    let source = DatabaseFile::find(database, PATIENCE)?.plain()?;
    let staged = Staged::take(beside(database, "backup"))?;
    // Into an empty file that is ours alone: SQLite would make one that others may read.
    staged.file.set_len(0)?;
    source.execute("VACUUM INTO ?1", [staged.path.to_string_lossy()])?;
    let found = inspect::look(&staged.path, PATIENCE)?;
    found.sound(database)?;
    let file = File::open(&staged.path)?;
    let size_bytes = file.metadata()?.len();
    Ok(Backup { file, version: found.version, size_bytes })
}

/// Puts a copy in the place of the database, with a new epoch: cursors of before know that they are of another life. `name` is
/// what errors call the copy. No server may run on this database; the caller sees to that.
///
/// # Errors
/// [`Error::NewerVersion`], [`Error::NotABackup`]; or a file cannot be read or written. The database is then as it was.
pub fn restore(database: &Path, copy: &mut dyn Read, name: &Path) -> Result<Restored> {
    let staged = Staged::take(beside(database, "restoring")).map_err(|fault| fault.into_error(database))?;
    stage(&staged, copy).map_err(|fault| fault.into_error(database))?;
    let found = inspect::look(&staged.path, PATIENCE).map_err(|fault| no_backup(name, fault))?;
    found.sound(name).map_err(|fault| fault.into_error(name))?;
    let put = || {
        let epoch = begin_epoch(&staged.path)?;
        staged.file.sync_all()?;
        let old = replace(database, &staged.path)?;
        Ok(Restored { version: found.version, epoch, old })
    };
    put().map_err(|fault: Fault| fault.into_error(database))
}

fn no_backup(name: &Path, fault: Fault) -> Error {
    match fault {
        Fault::Driver(error) => {
            Error::NotABackup { path: name.to_owned(), why: Cause::of(&error).to_string() }
        }
        other => other.into_error(name),
    }
}

fn stage(staged: &Staged, copy: &mut dyn Read) -> std::result::Result<(), Fault> {
    staged.file.set_len(0)?;
    for rest in ["-wal", "-shm", "-journal"] {
        remove(&with_suffix(&staged.path, rest))?;
    }
    io::copy(copy, &mut &staged.file)?;
    Ok(())
}

/// Random, as in the first migration: a backup that is restored twice must not give one epoch twice.
fn begin_epoch(path: &Path) -> std::result::Result<String, Fault> {
    let connection = DatabaseFile::find(path, PATIENCE)?.plain()?;
    // One file and no log beside it, which would have to be moved with it.
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "delete", |row| row.get(0))?;
    if mode != "delete" {
        return Err(Fault::Away(Cause::text(format!("the copy keeps its journal as `{mode}`"))));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    // Who opens it next releases what was held; the copy may be too old to have tickets at all.
    connection.execute_batch(
        "INSERT OR REPLACE INTO meta (name, value)
         SELECT 'epoch_began', coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0);
         INSERT OR REPLACE INTO meta (name, value) VALUES ('restored', 'yes');",
    )?;
    let sql = "UPDATE meta SET value = lower(hex(randomblob(8))) WHERE name = 'epoch' RETURNING value";
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// At every moment the database has its name, and each file that was there before has one.
fn replace(database: &Path, new: &Path) -> std::result::Result<Option<PathBuf>, Fault> {
    let wal = with_suffix(database, "-wal");
    // A log that is empty cannot be missed between the two steps below. A damaged database may not have it emptied.
    if let Ok(connection) = Connection::open(database) {
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    let old = aside(database)?;
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

/// A second name for the database, which nothing had before.
fn aside(database: &Path) -> std::result::Result<Option<PathBuf>, Fault> {
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

/// A file that is being filled, and by nobody else. It goes when dropped, unless it was given another name.
struct Staged {
    file: File,
    path: PathBuf,
}

impl Staged {
    fn take(path: PathBuf) -> std::result::Result<Self, Fault> {
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let busy = format!("another process fills {}; wait until it is done", path.display());
                    return Err(Fault::Away(Cause::text(busy)));
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // The one before may have removed it between our open and our lock.
            if fs::metadata(&path)
                .is_ok_and(|found| file.metadata().is_ok_and(|own| own.ino() == found.ino()))
            {
                return Ok(Self { file, path });
            }
        }
    }
}

impl Drop for Staged {
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

/// ext4 may lose a new name in a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
        .sync_all()
}
