//! Cache of recently presented keys, which is valid as long as no key and no account has changed.
//!
//! Most requests use the same key as the request before. To detect changes, the cache uses three counters:
//! - Commits of this process: the writer counts each commit before it answers its commands.
//! - Commits of other processes: `PRAGMA data_version` (<https://www.sqlite.org/pragma.html#pragma_data_version>), which is
//!   read again after [`CHECK_INTERVAL`]. That is shorter than the time in which another process can end and yet another one
//!   start.
//! - Changes of keys and accounts: the table `key_changes`, which triggers update.
//!
//! So a revoked key is refused from the next request on.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::Connection;
use skep_accounts::KeyHash;
use tokio::sync::watch;

use super::{error::SqliteError, file::DatabaseFile};
use crate::{Commit, CommitObserver, PresentedKey};

/// Maximum number of cached keys. One more clears the cache.
const MAX_KEYS: usize = 4_096;
/// How long a commit of another process may remain unnoticed.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Version of all keys and accounts; equal versions have the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeysVersion(i64);

/// Counts the commits of the writer, publishes the count and forwards each commit to the next observer.
#[derive(Debug, Clone)]
pub(super) struct CommitCounter {
    count: Arc<AtomicU64>,
    signal: Arc<watch::Sender<u64>>,
    next: Arc<dyn CommitObserver>,
}

impl CommitCounter {
    pub(super) fn new(next: Arc<dyn CommitObserver>, signal: watch::Sender<u64>) -> Self {
        Self { count: Arc::default(), signal: Arc::new(signal), next }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

impl CommitObserver for CommitCounter {
    fn committed(&self, commit: Commit) {
        // Failed commits count too, because they may have changed something nevertheless.
        let count = self.count.fetch_add(1, Ordering::Release) + 1;
        self.signal.send_replace(count);
        self.next.committed(commit);
    }
}

/// Result of a cache lookup.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The cached key, equal to what a query would return now.
    Hit(Box<PresentedKey>),
    /// Not cached. A key that is read now may be cached with this version.
    Miss(KeysVersion),
    /// The version could not be read from the database, so the cache cannot be used.
    Unavailable,
}

#[derive(Debug)]
pub(super) struct KeyCache {
    commits: CommitCounter,
    entries: Mutex<Entries>,
}

#[derive(Debug)]
struct Entries {
    /// Used only to read the counters.
    connection: Connection,
    version: KeysVersion,
    /// Count of own commits and `data_version` at the latest check, and the time of that check.
    commits: u64,
    data_version: i64,
    checked_at: Instant,
    keys: HashMap<KeyHash, PresentedKey>,
}

impl KeyCache {
    /// Creates an empty cache. Its connection never waits for a lock, because lookups run on async threads.
    pub(super) fn new(file: &DatabaseFile, commits: CommitCounter) -> Result<Self, SqliteError> {
        let connection = file.reader()?;
        connection.busy_timeout(Duration::ZERO)?;
        let kept = Entries {
            commits: commits.count(),
            checked_at: Instant::now(),
            data_version: read_data_version(&connection)?,
            version: read_keys_version(&connection)?,
            connection,
            keys: HashMap::new(),
        };
        Ok(Self { commits, entries: Mutex::new(kept) })
    }

    /// Returns the key with this hash if it is cached and current.
    pub(super) fn look_up(&self, hash: &KeyHash) -> Lookup {
        // Read before the counters of SQLite: a commit in between only causes one more check.
        let commits = self.commits.count();
        let mut kept = lock(&self.entries);
        if (kept.commits != commits || kept.checked_at.elapsed() > CHECK_INTERVAL)
            && kept.refresh(commits).is_err()
        {
            return Lookup::Unavailable;
        }
        match kept.keys.get(hash) {
            Some(key) => Lookup::Hit(Box::new(key.clone())),
            None => Lookup::Miss(kept.version),
        }
    }

    /// Caches a key that was read after the lookup returned this version, unless the version has changed.
    pub(super) fn insert(&self, hash: KeyHash, key: PresentedKey, read_after: KeysVersion) {
        let mut kept = lock(&self.entries);
        if kept.version != read_after {
            return;
        }
        if kept.keys.len() >= MAX_KEYS {
            kept.keys.clear();
        }
        kept.keys.insert(hash, key);
    }
}

impl Entries {
    /// Reads the counters and clears the cache if a key may have changed. A failed check is repeated at the next
    /// lookup.
    fn refresh(&mut self, commits: u64) -> Result<(), SqliteError> {
        let asked = Instant::now();
        let number = read_data_version(&self.connection)?;
        if number != self.data_version {
            // Read after `data_version`: a commit in between only causes one more check.
            let version = read_keys_version(&self.connection)?;
            if version != self.version {
                self.keys.clear();
            }
            self.version = version;
        }
        (self.commits, self.data_version, self.checked_at) = (commits, number, asked);
        Ok(())
    }
}

fn read_data_version(connection: &Connection) -> Result<i64, SqliteError> {
    let mut statement = connection.prepare_cached("PRAGMA data_version")?;
    Ok(statement.query_row([], |row| row.get(0))?)
}

fn read_keys_version(connection: &Connection) -> Result<KeysVersion, SqliteError> {
    let mut statement = connection.prepare_cached("SELECT count FROM key_changes")?;
    Ok(KeysVersion(statement.query_row([], |row| row.get(0))?))
}

fn lock(kept: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
