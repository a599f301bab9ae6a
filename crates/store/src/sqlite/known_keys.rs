//! Keys that were presented lately, for as long as no key and no account was changed since they were read.
//!
//! Most requests come with a key that the one before had too. Our own writer tells of each commit before it answers.
//! Whether another process committed anything, SQLite tells
//! (<https://www.sqlite.org/pragma.html#pragma_data_version>): asked again after a time that is shorter than that
//! process takes to end and another to begin. Whether a commit changed a key or an account, the database counts. So a
//! revoked key is refused at the next request all the same.

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

/// A state of the keys and accounts. Equal ones have the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(i64);

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
    /// Nothing, and the database does not say just now in what state it is.
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
    /// Asks for the versions, and reads nothing else.
    connection: Connection,
    version: Version,
    /// Our own commits until that was asked, the version that the whole database had then, and when it was.
    commits: u64,
    number: i64,
    asked: Instant,
    keys: HashMap<KeyHash, PresentedKey>,
}

impl KnownKeys {
    /// Knows none yet. Its connection waits for no lock: it is asked where nothing may block.
    pub(super) fn new(file: &DatabaseFile, commits: Commits) -> Result<Self, Fault> {
        let connection = file.reader()?;
        connection.busy_timeout(Duration::ZERO)?;
        let kept = Kept {
            commits: commits.count(),
            asked: Instant::now(),
            number: number(&connection)?,
            version: version(&connection)?,
            connection,
            keys: HashMap::new(),
        };
        Ok(Self { commits, kept: Mutex::new(kept) })
    }

    /// What a key is now, if that is known.
    pub(super) fn look_up(&self, hash: &KeyHash) -> Known {
        // Before SQLite is asked: a commit in between then only makes us ask once more.
        let commits = self.commits.count();
        let mut kept = lock(&self.kept);
        if (kept.commits != commits || kept.asked.elapsed() > GLANCE) && kept.ask(commits).is_err() {
            return Known::Unclear;
        }
        match kept.keys.get(hash) {
            Some(key) => Known::Key(Box::new(key.clone())),
            None => Known::Nothing(kept.version),
        }
    }

    /// Keeps what was read after the keys had this version, unless they have another one by now.
    pub(super) fn keep(&self, hash: KeyHash, key: PresentedKey, read_after: Version) {
        let mut kept = lock(&self.kept);
        if kept.version != read_after {
            return;
        }
        if kept.keys.len() >= MOST {
            kept.keys.clear();
        }
        kept.keys.insert(hash, key);
    }
}

impl Kept {
    /// Forgets all keys where one may have changed. Nothing counts as asked where the answer fails.
    fn ask(&mut self, commits: u64) -> Result<(), Fault> {
        let asked = Instant::now();
        let number = number(&self.connection)?;
        if number != self.number {
            // After the number: what is committed in between then only makes us ask once more.
            let version = version(&self.connection)?;
            if version != self.version {
                self.keys.clear();
            }
            self.version = version;
        }
        (self.commits, self.number, self.asked) = (commits, number, asked);
        Ok(())
    }
}

fn number(connection: &Connection) -> Result<i64, Fault> {
    let mut statement = connection.prepare_cached("PRAGMA data_version")?;
    Ok(statement.query_row([], |row| row.get(0))?)
}

fn version(connection: &Connection) -> Result<Version, Fault> {
    let mut statement = connection.prepare_cached("SELECT count FROM key_changes")?;
    Ok(Version(statement.query_row([], |row| row.get(0))?))
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
