//! Keys that were presented lately, for as long as nothing at all was committed since they were read.
//!
//! Most requests come with a key that the one before had too. Our own writer tells of each commit before it answers.
//! Whether another process committed anything, SQLite tells
//! (<https://www.sqlite.org/pragma.html#pragma_data_version>): asked again after a time that is shorter than that
//! process takes to end and another to begin. So a revoked key is refused at the next request all the same.

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

use super::{fault::Fault, file::DatabaseFile};
use crate::{Commit, CommitObserver, PresentedKey};

/// Keys that are remembered. With one more all are forgotten.
const MOST: usize = 4_096;
/// How long another process's commit may go unnoticed.
pub(super) const GLANCE: Duration = Duration::from_millis(1);

/// A state of the database. Equal ones have the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// Our own commits until then.
    commits: u64,
    /// What SQLite calls it.
    number: i64,
}

/// Counts the writer's commits, and tells of them.
#[derive(Debug, Clone)]
pub(super) struct Commits {
    count: Arc<AtomicU64>,
    signal: Arc<watch::Sender<u64>>,
    next: Arc<dyn CommitObserver>,
}

impl Commits {
    pub(super) fn observed_by(next: Arc<dyn CommitObserver>, signal: watch::Sender<u64>) -> Self {
        Self { count: Arc::default(), signal: Arc::new(signal), next }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

impl CommitObserver for Commits {
    fn committed(&self, commit: Commit) {
        // One that failed may have changed something after all.
        let count = self.count.fetch_add(1, Ordering::Release) + 1;
        self.signal.send_replace(count);
        self.next.committed(commit);
    }
}

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
pub(super) struct KnownKeys {
    commits: Commits,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// Asks for the version, and reads nothing else.
    connection: Connection,
    version: Version,
    asked: Instant,
    keys: HashMap<KeyHash, PresentedKey>,
}

impl KnownKeys {
    /// Knows none yet. Its connection waits for no lock: it is asked where nothing may block.
    pub(super) fn new(file: &DatabaseFile, commits: Commits) -> Result<Self, Fault> {
        let connection = file.reader()?;
        connection.busy_timeout(Duration::ZERO)?;
        let version = Version { commits: commits.count(), number: number(&connection)? };
        let kept = Kept { connection, version, asked: Instant::now(), keys: HashMap::new() };
        Ok(Self { commits, kept: Mutex::new(kept) })
    }

    /// What a key is now, if that is known.
    pub(super) fn look_up(&self, hash: &KeyHash) -> Known {
        // Before SQLite is asked: a commit in between then only makes us ask once more.
        let commits = self.commits.count();
        let mut kept = lock(&self.kept);
        if kept.version.commits != commits || kept.asked.elapsed() > GLANCE {
            let asked = Instant::now();
            let Ok(number) = number(&kept.connection) else { return Known::Unclear };
            if number != kept.version.number {
                kept.keys.clear();
            }
            (kept.version, kept.asked) = (Version { commits, number }, asked);
        }
        match kept.keys.get(hash) {
            Some(key) => Known::Key(Box::new(key.clone())),
            None => Known::Nothing(kept.version),
        }
    }

    /// Keeps what was read after the database had this version, unless it has another one by now.
    pub(super) fn keep(&self, hash: KeyHash, key: PresentedKey, read_after: Version) {
        let mut kept = lock(&self.kept);
        if kept.version.number != read_after.number {
            return;
        }
        if kept.keys.len() >= MOST {
            kept.keys.clear();
        }
        kept.keys.insert(hash, key);
    }
}

fn number(connection: &Connection) -> Result<i64, Fault> {
    let mut statement = connection.prepare_cached("PRAGMA data_version")?;
    Ok(statement.query_row([], |row| row.get(0))?)
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
