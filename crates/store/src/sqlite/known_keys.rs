//! Keys that were presented lately, for as long as nothing at all was committed since they were read.
//!
//! Most requests come with a key that the one before had too. SQLite tells cheaply whether anybody, another process too,
//! committed anything (<https://www.sqlite.org/pragma.html#pragma_data_version>), so that a revoked key is refused at
//! the next request all the same.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rusqlite::Connection;
use skep_accounts::KeyHash;

use super::{fault::Fault, file::DatabaseFile};
use crate::PresentedKey;

/// Keys that are remembered. With one more all are forgotten.
const MOST: usize = 4_096;

/// A state of the database. Equal ones have the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(i64);

/// What is known of a key.
#[derive(Debug)]
pub(super) enum Known {
    /// All of it: this is what a query would find now.
    Key(Box<PresentedKey>),
    /// Nothing. What is read now may be [kept](KnownKeys::keep) under this version.
    Nothing(Version),
    /// Nothing, and the database does not say its version just now.
    Unclear,
}

/// Keys that were presented lately.
#[derive(Debug)]
pub(super) struct KnownKeys(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    /// Asks for the version, and reads nothing else.
    connection: Connection,
    version: Version,
    keys: HashMap<KeyHash, PresentedKey>,
}

impl KnownKeys {
    /// Knows none yet. Its connection waits for no lock: it is asked where nothing may block.
    pub(super) fn new(file: &DatabaseFile) -> Result<Self, Fault> {
        let connection = file.reader()?;
        connection.busy_timeout(Duration::ZERO)?;
        let version = version(&connection)?;
        Ok(Self(Mutex::new(Kept { connection, version, keys: HashMap::new() })))
    }

    /// What a key is now, if that is known.
    pub(super) fn look_up(&self, hash: &KeyHash) -> Known {
        let mut kept = lock(&self.0);
        let Ok(now) = version(&kept.connection) else { return Known::Unclear };
        if now != kept.version {
            kept.version = now;
            kept.keys.clear();
        }
        match kept.keys.get(hash) {
            Some(key) => Known::Key(Box::new(key.clone())),
            None => Known::Nothing(now),
        }
    }

    /// Keeps what was read after the database had this version, unless it has another one by now.
    pub(super) fn keep(&self, hash: KeyHash, key: PresentedKey, read_after: Version) {
        let mut kept = lock(&self.0);
        if kept.version != read_after {
            return;
        }
        if kept.keys.len() >= MOST {
            kept.keys.clear();
        }
        kept.keys.insert(hash, key);
    }
}

fn version(connection: &Connection) -> Result<Version, Fault> {
    let mut statement = connection.prepare_cached("PRAGMA data_version")?;
    Ok(Version(statement.query_row([], |row| row.get(0))?))
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
