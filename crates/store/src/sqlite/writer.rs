//! The writer thread, which executes all commands and commits them in batches.
//!
//! ```text
//! run(command) --> queue --> thread: BEGIN; run each queued command; COMMIT
//!       ^                                                                 |
//!       +------ one answer per command, once the commit is durable -------+
//! ```
//! Commands that arrive while a commit is written to the disk share the next commit.

#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    ffi::c_int,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Instant,
};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::{error::SqliteError, file::DatabaseFile};
use crate::{Cause, Commit, CommitObserver, Error};

/// Capacity of the queue. Senders wait while it is full.
const QUEUE_CAPACITY: usize = 1024;
/// Maximum number of commands in one commit; a larger batch would delay its first commands.
const MAX_BATCH: usize = 128;

/// Pages in the WAL from which on it is checkpointed.
const CHECKPOINT_PAGES: c_int = 1_000;

thread_local! {
    /// Pages in the WAL after this thread's last commit.
    static WAL_PAGES: Cell<c_int> = const { Cell::new(0) };
}

/// Handle to the writer thread. Dropping it executes the queued commands and then joins the thread.
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<thread::JoinHandle<()>>,
    file: Arc<DatabaseFile>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        file: Arc<DatabaseFile>,
        observer: Arc<dyn CommitObserver>,
    ) -> Result<Self, SqliteError> {
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let watched = Arc::clone(&file);
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || write(connection, &watched, commands, &*observer))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), file })
    }

    /// Executes a command and returns once it is durable. The command may run twice: the first run is rolled back if
    /// another command of the same batch failed.
    pub(super) async fn run<T, F>(&self, command: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, SqliteError> + Send + 'static,
    {
        self.run_and_notify(command, |_| ()).await
    }

    /// Like [`run`](Self::run), and calls `notify` with a successful outcome once it is durable, even if the caller has
    /// dropped the future.
    pub(super) async fn run_and_notify<T, F, N>(&self, command: F, notify: N) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, SqliteError> + Send + 'static,
        N: FnOnce(&T) + Send + 'static,
    {
        let gone = || {
            SqliteError::Unavailable(Cause::new("the store's writer has ended")).into_error(self.file.path())
        };
        let (reply, answer) = oneshot::channel();
        let job = Command { command, outcome: None, notify, reply };
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        queue.send(Box::new(job)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread, and its callers have received an error.
            let _ = thread.join();
        }
    }
}

/// A queued command, with the type of its answer erased.
trait Job: Send {
    /// Runs the command in the open transaction. The outcome is kept for the answer; an error is returned here as well.
    fn run(&mut self, connection: &Connection, file: &DatabaseFile) -> Result<(), Error>;
    /// Sends the command's outcome, or the error of the commit if that failed.
    fn answer(self: Box<Self>, committed: Result<(), Error>);
}

struct Command<T, F, N> {
    command: F,
    outcome: Option<Result<T, Error>>,
    notify: N,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T, F, N> Job for Command<T, F, N>
where
    T: Send,
    F: Fn(&Connection) -> Result<T, SqliteError> + Send,
    N: FnOnce(&T) + Send,
{
    fn run(&mut self, connection: &Connection, file: &DatabaseFile) -> Result<(), Error> {
        // A command that panics is rolled back like a failed one and must not affect the other commands of its batch.
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.command)(connection)))
            .unwrap_or_else(|_| Err(SqliteError::Internal(Cause::new("a command panicked"))))
            .map_err(|fault| fault.into_error(file.path()));
        let result = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        self.outcome = Some(outcome);
        result
    }

    fn answer(self: Box<Self>, committed: Result<(), Error>) {
        // A refusal may depend on a change by an earlier command of the batch, so it is valid only if that was
        // committed.
        let answer = match (committed, self.outcome) {
            (Ok(()), Some(outcome)) => outcome,
            (Err(error), _) => Err(error),
            // The command never ran. Dropping the sender reports to the caller that the writer has ended.
            (Ok(()), None) => return,
        };
        if let Ok(outcome) = &answer {
            (self.notify)(outcome);
        }
        // The caller may have dropped the receiver; the command is committed nevertheless.
        let _ = self.reply.send(answer);
    }
}

fn write(
    mut connection: Connection,
    file: &DatabaseFile,
    mut commands: mpsc::Receiver<Box<dyn Job>>,
    observer: &dyn CommitObserver,
) {
    // Replaces SQLite's automatic checkpoint, which would run before the commands of the commit are answered.
    connection.wal_hook(Some(|_, pages| {
        WAL_PAGES.set(pages);
        Ok(())
    }));
    while let Some(first) = commands.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH {
            let Ok(next) = commands.try_recv() else { break };
            batch.push(next);
        }
        let begun = Instant::now();
        let committed = commit_batch(&mut connection, file, &mut batch);
        observer.committed(Commit {
            took: begun.elapsed(),
            commands: batch.len(),
            succeeded: committed.is_ok(),
        });
        for job in batch {
            job.answer(committed.clone());
        }
        if WAL_PAGES.get() >= CHECKPOINT_PAGES {
            checkpoint(&connection);
        }
    }
}

/// Checkpoints the WAL as far as readers permit. If that fails, the WAL is still complete and the next commit tries
/// again.
fn checkpoint(connection: &Connection) {
    let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
}

/// Executes the batch in one transaction. If a command fails after it wrote something, the transaction is rolled back
/// and the batch runs again with a savepoint for each command. Savepoints in the first run would cost a copy of each
/// changed page.
fn commit_batch(
    connection: &mut Connection,
    file: &DatabaseFile,
    batch: &mut [Box<dyn Job>],
) -> Result<(), Error> {
    match commit(connection, file, batch, Savepoints::No)? {
        BatchCommitted::Yes => Ok(()),
        BatchCommitted::RetryWithSavepoints => commit(connection, file, batch, Savepoints::Yes).map(|_| ()),
    }
}

/// Whether each command has a savepoint of its own, so that it can be rolled back alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Savepoints {
    Yes,
    No,
}

enum BatchCommitted {
    Yes,
    /// A command failed after it wrote something, and cannot be rolled back without the others.
    RetryWithSavepoints,
}

fn commit(
    connection: &mut Connection,
    file: &DatabaseFile,
    batch: &mut [Box<dyn Job>],
    apart: Savepoints,
) -> Result<BatchCommitted, Error> {
    let into_error = |error: rusqlite::Error| SqliteError::from(error).into_error(file.path());
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(into_error)?;
    for job in batch {
        if apart == Savepoints::Yes {
            savepoint(&transaction, "SAVEPOINT command").map_err(into_error)?;
        }
        let changes = transaction.total_changes();
        let outcome = job.run(&transaction, file);
        // On a full or failing disk SQLite can roll back the whole transaction, including the other commands.
        if transaction.is_autocommit() {
            return Err(outcome.err().unwrap_or_else(|| {
                SqliteError::Unavailable(Cause::new("the transaction was rolled back"))
                    .into_error(file.path())
            }));
        }
        if apart == Savepoints::Yes {
            if outcome.is_err() {
                savepoint(&transaction, "ROLLBACK TO command").map_err(into_error)?;
            }
            savepoint(&transaction, "RELEASE command").map_err(into_error)?;
        } else if outcome.is_err() && transaction.total_changes() != changes {
            return Ok(BatchCommitted::RetryWithSavepoints);
        }
    }
    file.check_not_replaced().map_err(|fault| fault.into_error(file.path()))?;
    transaction.commit().map_err(into_error)?;
    Ok(BatchCommitted::Yes)
}

fn savepoint(transaction: &Connection, sql: &'static str) -> rusqlite::Result<()> {
    transaction.prepare_cached(sql)?.execute([])?;
    Ok(())
}
