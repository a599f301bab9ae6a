//! Implementation of [`Store`](crate::Store) in one SQLite file, with one writer thread and a pool of read connections.
//! Each subject has a file, with its trait at the top.

mod accounts;
mod after_restore;
mod audit;
mod backups;
mod columns;
mod deliveries;
mod error;
mod events;
mod file;
mod git;
mod health;
mod inspect;
mod key_cache;
mod keys;
mod migrations;
mod read_roots;
mod read_vms;
mod readers;
mod retention;
mod run_logs;
mod sessions;
mod table;
mod templates;
#[cfg(test)]
mod tests;
mod tickets;
mod vms;
mod waitlist;
mod webhooks;
mod writer;

pub use self::{
    backups::{Backup, Restored, backup, restore},
    inspect::{Inspection, inspect},
    read_roots::account_roots,
    read_vms::vms_on_disk,
};

use std::{path::PathBuf, sync::Arc, time::Duration};

use rusqlite::Connection;
use skep_accounts::SessionHash;
use skep_api::KeyId;
use tokio::sync::{broadcast, watch};

use self::{
    error::SqliteError,
    file::DatabaseFile,
    key_cache::{CommitCounter, KeyCache},
    readers::Readers,
    tickets::{TicketIdGenerator, WithSignals},
    writer::Writer,
};
use crate::{Cause, CommitObserver, Error, Result, TicketSignal};

/// Capacity of the channel of revocations. A receiver that lags must look its keys up again.
const REVOCATION_CAPACITY: usize = 1024;
/// Capacity of the channel of ended sessions. A receiver that lags must look its sessions up again.
const ENDED_SESSION_CAPACITY: usize = 256;
/// Capacity of the channel of ticket signals. A receiver that lags must read the open attempts and waiting tickets
/// again.
const SIGNAL_CAPACITY: usize = 16_384;

/// Location and options of the database.
#[derive(Debug, Clone)]
pub struct SqliteSettings {
    /// The file, created with mode 0600 if it does not exist. Its directory must exist and be writable.
    pub path: PathBuf,
    /// How long to wait for a lock of another process on the file.
    pub busy_timeout: Duration,
    pub observer: Arc<dyn CommitObserver>,
}

impl SqliteSettings {
    /// Settings for the database at this path, with a busy timeout of 5 seconds and no observer.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), busy_timeout: Duration::from_secs(5), observer: Arc::new(()) }
    }
}

/// A store in one SQLite file. Dropping it executes the commands that are still queued.
pub struct SqliteStore {
    // Declared, and so dropped, before the readers: the last connection to close should have nothing to write.
    writer: Writer,
    readers: Readers,
    key_cache: KeyCache,
    path: PathBuf,
    revocations: broadcast::Sender<KeyId>,
    ended_sessions: broadcast::Sender<SessionHash>,
    ticket_ids: Arc<TicketIdGenerator>,
    ticket_signals: broadcast::Sender<TicketSignal>,
    commits: watch::Receiver<u64>,
}

impl SqliteStore {
    /// Opens the database, creates it if it does not exist, and migrates it to the newest version.
    ///
    /// # Errors
    /// [`Error::NewerVersion`] if a newer skep wrote it, [`Error::Unavailable`] if the file cannot be used.
    pub async fn open(settings: SqliteSettings) -> Result<Self> {
        let path = settings.path.clone();
        let opened = tokio::task::spawn_blocking(move || {
            open(&settings).map_err(|fault| fault.into_error(&settings.path))
        });
        opened.await.map_err(|error| Error::Internal { path, source: Cause::from_error(&error) })?
    }

    fn start(
        connection: Connection,
        file: Arc<DatabaseFile>,
        observer: Arc<dyn CommitObserver>,
    ) -> std::result::Result<Self, SqliteError> {
        let (signal, commit_count) = watch::channel(0);
        let commits = CommitCounter::new(observer, signal);
        let (known_keys, path) = (KeyCache::new(&file, commits.clone())?, file.path().to_owned());
        let writer = Writer::start(connection, Arc::clone(&file), Arc::new(commits))?;
        let revocations = broadcast::channel(REVOCATION_CAPACITY).0;
        let (ticket_ids, ticket_news) = (Arc::default(), broadcast::channel(SIGNAL_CAPACITY).0);
        Ok(Self {
            writer,
            readers: Readers::new(file),
            key_cache: known_keys,
            path,
            revocations,
            ended_sessions: broadcast::channel(ENDED_SESSION_CAPACITY).0,
            ticket_ids,
            ticket_signals: ticket_news,
            commits: commit_count,
        })
    }

    /// Executes a command that revokes keys, and broadcasts their ids once it is durable.
    async fn run_revocation<T: Send + 'static>(
        &self,
        command: impl Fn(&Connection) -> std::result::Result<(T, Vec<KeyId>), SqliteError> + Send + 'static,
    ) -> Result<T> {
        let listeners = self.revocations.clone();
        let notify = move |(_, revoked): &(T, Vec<KeyId>)| send_all(&listeners, revoked);
        Ok(self.writer.run_and_notify(command, notify).await?.0)
    }

    /// Executes a command on tickets, and broadcasts the resulting signals once it is durable.
    async fn run_ticket_command<T: Send + 'static>(
        &self,
        command: impl Fn(&Connection) -> std::result::Result<WithSignals<T>, SqliteError> + Send + 'static,
    ) -> Result<T> {
        let listeners = self.ticket_signals.clone();
        let notify = move |(_, signals): &WithSignals<T>| send_all(&listeners, signals);
        Ok(self.writer.run_and_notify(command, notify).await?.0)
    }

    /// Executes a command that ends VMs, and broadcasts the revoked keys and the ticket signals once it is durable.
    async fn run_vm_end<T: Send + 'static>(
        &self,
        command: impl Fn(&Connection) -> std::result::Result<(T, vms::Endings), SqliteError> + Send + 'static,
    ) -> Result<T> {
        let (revocations, listeners) = (self.revocations.clone(), self.ticket_signals.clone());
        let notify = move |(_, endings): &(T, vms::Endings)| {
            send_all(&revocations, &endings.keys);
            send_all(&listeners, &endings.tickets);
        };
        Ok(self.writer.run_and_notify(command, notify).await?.0)
    }
}

/// Sends all items to the subscribers, if there are any.
fn send_all<T: Clone>(listeners: &broadcast::Sender<T>, items: &[T]) {
    for one in items {
        let _ = listeners.send(one.clone());
    }
}

fn open(settings: &SqliteSettings) -> std::result::Result<SqliteStore, SqliteError> {
    let file = Arc::new(DatabaseFile::locate_or_create(&settings.path, settings.busy_timeout)?);
    let mut connection = file.writer()?;
    migrations::migrate(&mut connection)?;
    after_restore::release_tickets(&mut connection)?;
    SqliteStore::start(connection, file, Arc::clone(&settings.observer))
}
