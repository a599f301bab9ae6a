//! A pool of read-only connections, used on blocking threads.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinHandle, spawn_blocking},
};
use tokio_util::task::AbortOnDropHandle;

use super::{error::SqliteError, file::DatabaseFile};
use crate::{Cause, Error};

/// Maximum number of concurrent queries. They are CPU-bound, so that more would not be faster.
const MAX_CONNECTIONS: usize = 4;

/// Pool of read-only connections, opened on demand.
pub(super) struct Readers {
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
    file: Arc<DatabaseFile>,
}

impl Readers {
    pub(super) fn new(file: Arc<DatabaseFile>) -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)), idle: Arc::default(), file }
    }

    /// Runs a query in one read transaction, which sees the latest commit.
    ///
    /// The future may be left unpolled for any time, as in a response body that the client does not read: the permit is
    /// held by the thread that runs the query, never by this future. If the future is dropped before the query starts,
    /// the query does not run.
    pub(super) async fn run<T, F>(&self, query: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, SqliteError> + Send + 'static,
    {
        let panicked = |_| internal_error("a query panicked", &self.file);
        let permits = Arc::clone(&self.permits);
        let (idle, file) = (Arc::clone(&self.idle), Arc::clone(&self.file));
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            return spawn_query(permit, idle, file, query).await.map_err(panicked)?;
        }
        // The semaphore assigns a permit to the waiter at the head of its queue even if that one is never polled again.
        // A spawned task is always polled.
        let waiting = tokio::spawn(async move {
            let permit =
                permits.acquire_owned().await.map_err(|_| internal_error("the readers have ended", &file))?;
            let path = Arc::clone(&file);
            spawn_query(permit, idle, file, query)
                .await
                .map_err(|_| internal_error("a query panicked", &path))?
        });
        AbortOnDropHandle::new(waiting).await.map_err(panicked)?
    }
}

/// Runs a query on a blocking thread, which holds the permit until the query has ended.
fn spawn_query<T, F>(
    permit: OwnedSemaphorePermit,
    idle: Arc<Mutex<Vec<Connection>>>,
    file: Arc<DatabaseFile>,
    query: F,
) -> JoinHandle<Result<T, Error>>
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Result<T, SqliteError> + Send + 'static,
{
    spawn_blocking(move || {
        let outcome = read(&idle, &file, query).map_err(|fault| fault.into_error(file.path()));
        drop(permit);
        outcome
    })
}

fn internal_error(what: &str, file: &DatabaseFile) -> Error {
    SqliteError::Internal(Cause::new(what)).into_error(file.path())
}

fn read<T>(
    idle: &Mutex<Vec<Connection>>,
    file: &DatabaseFile,
    query: impl FnOnce(&Connection) -> Result<T, SqliteError>,
) -> Result<T, SqliteError> {
    let waiting = lock(idle).pop();
    let mut connection = match waiting {
        Some(connection) => connection,
        None => {
            let connection = file.reader()?;
            // A file that replaced the database under the same name is not this store, whatever it contains.
            file.check_not_replaced()?;
            connection
        }
    };
    let transaction = connection.transaction()?;
    let outcome = query(&transaction);
    drop(transaction);
    // After a failure the connection is dropped, because it may be the cause.
    if outcome.is_ok() {
        lock(idle).push(connection);
    }
    outcome
}

fn lock(idle: &Mutex<Vec<Connection>>) -> std::sync::MutexGuard<'_, Vec<Connection>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    fn readers() -> (tempfile::TempDir, Readers) {
        let folder = tempfile::tempdir().unwrap();
        let file =
            DatabaseFile::locate_or_create(&folder.path().join("skep.db"), Duration::from_secs(5)).unwrap();
        (folder, Readers::new(Arc::new(file)))
    }

    #[tokio::test]
    async fn unpolled_queries_do_not_block_other_queries() {
        let (_folder, readers) = readers();
        let mut forgotten = Vec::new();
        for number in 0..40 {
            let mut query = Box::pin(readers.run(move |_| Ok(number)));
            // Those beyond MAX_CONNECTIONS now wait for a permit. A fast query has its answer already.
            match (&mut query).now_or_never() {
                None => forgotten.push((number, query)),
                Some(answer) => assert_eq!(answer.unwrap(), number),
            }
        }
        let answer = tokio::time::timeout(Duration::from_secs(30), readers.run(|_| Ok(7)));
        assert_eq!(answer.await.expect("the forgotten queries hold all permits").unwrap(), 7);
        // The forgotten queries still complete when they are polled.
        for (number, query) in forgotten {
            assert_eq!(query.await.unwrap(), number);
        }
    }

    #[tokio::test]
    async fn a_query_that_is_dropped_while_it_waits_is_not_run() {
        let (_folder, readers) = readers();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let busy: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| {
                let released = Arc::clone(&released);
                let mut query = Box::pin(readers.run(move |_| {
                    let _ = released.lock().unwrap().recv();
                    Ok(())
                }));
                assert!((&mut query).now_or_never().is_none());
                query
            })
            .collect();
        let (ran, runs) = oneshot::channel();
        let mut dropped = Box::pin(readers.run(move |_| Ok(ran.send(()))));
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        drop(release);
        for query in busy {
            query.await.unwrap();
        }
        readers.run(|_| Ok(())).await.unwrap();
        // Awaiting lets the runtime drop the aborted task. The queries above may all have answered without a yield.
        assert!(runs.await.is_err(), "it ran for nobody");
    }
}
