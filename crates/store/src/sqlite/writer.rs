//! The writer thread, which executes all commands and commits them in batches.
//!
//! ```text
//! run(command) --> queue --> thread: BEGIN; run each queued command; COMMIT
//!       ^                                                                 |
//!       +------ one answer per command, once the commit is durable -------+
//! ```
//! Commands that arrive while a commit is written to the disk share the next commit.

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skep_api::ErrorCode;

    use super::*;

    type Answer = oneshot::Receiver<Result<usize, Error>>;

    struct Fixture {
        _folder: tempfile::TempDir,
        file: Arc<DatabaseFile>,
        connection: Connection,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("skep.db");
            let file = Arc::new(DatabaseFile::locate_or_create(&path, Duration::from_millis(20)).unwrap());
            let connection = file.writer().unwrap();
            connection.execute_batch("CREATE TABLE words (word TEXT UNIQUE)").unwrap();
            Self { _folder: folder, file, connection }
        }

        fn words(&self) -> Vec<String> {
            let mut statement = self.connection.prepare("SELECT word FROM words ORDER BY word").unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        }

        fn commit(&mut self, batch: Vec<Box<dyn Job>>) -> Result<(), Error> {
            let mut batch = batch;
            let committed = commit_batch(&mut self.connection, &self.file, &mut batch);
            batch.into_iter().for_each(|job| job.answer(committed.clone()));
            committed
        }
    }

    fn job(
        command: impl Fn(&Connection) -> Result<usize, SqliteError> + Send + 'static,
    ) -> (Box<dyn Job>, Answer) {
        let (reply, answer) = oneshot::channel();
        (Box::new(Command { command, outcome: None, notify: |_: &usize| (), reply }), answer)
    }

    fn insert(connection: &Connection, word: &str) -> Result<usize, SqliteError> {
        Ok(connection.execute("INSERT INTO words VALUES (?1)", [word])?)
    }

    fn count(connection: &Connection) -> usize {
        let count = connection.query_row("SELECT count(*) FROM words", [], |row| row.get::<_, u32>(0));
        count.unwrap() as usize
    }

    #[test]
    fn a_command_that_fails_leaves_nothing_and_harms_no_other_of_its_batch() {
        let mut bench = Fixture::new();
        let (a, mut a_answer) = job(|c| insert(c, "a"));
        let (twice, mut twice_answer) = job(|c| insert(c, "half").and_then(|_| insert(c, "a")));
        let (refused, mut refused_answer) = job(|c| {
            insert(c, "refused")?;
            Err(Error::NameTaken { name: "refused".to_owned() }.into())
        });
        let (panics, mut panics_answer) = job(|c| {
            insert(c, "panicked").unwrap();
            panic!("on purpose")
        });
        let (b, mut b_answer) = job(|c| insert(c, "b"));
        bench.commit(vec![a, twice, refused, panics, b]).unwrap();
        assert_eq!(bench.words(), ["a", "b"]);
        assert_eq!(a_answer.try_recv().unwrap().unwrap(), 1);
        assert_eq!(b_answer.try_recv().unwrap().unwrap(), 1);
        for (answer, code) in [
            (&mut twice_answer, ErrorCode::Internal),
            (&mut refused_answer, ErrorCode::NameTaken),
            (&mut panics_answer, ErrorCode::Internal),
        ] {
            assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), code);
        }
    }

    #[test]
    fn a_rolled_back_transaction_fails_all_its_commands() {
        let mut bench = Fixture::new();
        let (lost, mut lost_answer) = job(|c| {
            // SQLite does the same when the disk is full.
            c.execute_batch("ROLLBACK")?;
            Err(SqliteError::Unavailable(Cause::new("disk full")))
        });
        let (a, mut a_answer) = job(|c| insert(c, "a"));
        let (b, mut b_answer) = job(|c| insert(c, "b"));
        bench.commit(vec![a, lost, b]).unwrap_err();
        assert!(bench.words().is_empty());
        for answer in [&mut a_answer, &mut lost_answer, &mut b_answer] {
            assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), ErrorCode::StoreUnavailable);
        }
    }

    #[test]
    fn a_database_that_was_deleted_takes_no_commands() {
        let mut bench = Fixture::new();
        std::fs::remove_file(bench.file.path()).unwrap();
        let (a, mut answer) = job(|c| insert(c, "a"));
        bench.commit(vec![a]).unwrap_err();
        assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), ErrorCode::StoreUnavailable);
    }

    #[test]
    fn waiting_commands_share_one_commit() {
        let Fixture { _folder, file, connection } = Fixture::new();
        let reader = Arc::new(std::sync::Mutex::new(file.reader().unwrap()));
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let thread = thread::spawn(move || write(connection, &file, commands, &()));

        let ((started, running), (open, gate)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let (first, _answer) = job(move |_| {
            started.send(()).unwrap();
            gate.recv().unwrap();
            Ok(0)
        });
        queue.blocking_send(first).ok().unwrap();
        running.recv().unwrap();
        let mut answers = Vec::new();
        for i in 0..10 {
            let reader = Arc::clone(&reader);
            let (next, answer) = job(move |c| {
                insert(c, &format!("{i}"))?;
                Ok(count(&reader.lock().unwrap()))
            });
            queue.blocking_send(next).ok().unwrap();
            answers.push(answer);
        }
        open.send(()).unwrap();
        for answer in answers {
            assert_eq!(answer.blocking_recv().unwrap().unwrap(), 0, "an earlier command was committed alone");
        }
        assert_eq!(count(&reader.lock().unwrap()), 10);
        drop(queue);
        thread.join().unwrap();
    }

    #[test]
    fn the_log_does_not_grow_with_what_is_written() {
        let Fixture { _folder, file, connection } = Fixture::new();
        connection.execute_batch("CREATE TABLE pages (page BLOB)").unwrap();
        let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
        let log = file.path().with_extension("db-wal");
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let thread = thread::spawn(move || write(connection, &file, commands, &()));
        // Each command writes a third of LOG_PAGES, all together several times as much.
        let share = i64::from(CHECKPOINT_PAGES) / 3;
        for _ in 0..20 {
            let (next, answer) =
                job(move |c| Ok(c.execute("INSERT INTO pages VALUES (zeroblob(?1))", [share * page])?));
            queue.blocking_send(next).ok().unwrap();
            answer.blocking_recv().unwrap().unwrap();
        }
        let pages = std::fs::metadata(log).unwrap().len() / u64::try_from(page).unwrap();
        assert!(pages < 2 * u64::try_from(CHECKPOINT_PAGES).unwrap(), "the log has {pages} pages");
        drop(queue);
        thread.join().unwrap();
    }
}
