//! A few connections that read beside the writer, on threads that may block.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinHandle, spawn_blocking},
};
use tokio_util::task::AbortOnDropHandle;

use super::{fault::Fault, file::DatabaseFile};
use crate::{Cause, Error};

/// Queries at the same time. More would only wait for the same processors.
const CONNECTIONS: usize = 4;

/// The readers, opened when first needed.
pub(super) struct Readers {
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
    file: Arc<DatabaseFile>,
}

impl Readers {
    /// Opens nothing yet.
    pub(super) fn new(file: Arc<DatabaseFile>) -> Self {
        Self { permits: Arc::new(Semaphore::new(CONNECTIONS)), idle: Arc::default(), file }
    }

    /// Runs a query, all of which sees one moment of the database: the last commit.
    ///
    /// The future may be left unpolled for any time, as in the body of an answer that its caller does not read: a permit is
    /// held by the thread that runs the query and never by this future. Dropped while it waits, the query is not run.
    pub(super) async fn run<T, F>(&self, query: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let panicked = |_| broken("a query panicked", &self.file);
        let permits = Arc::clone(&self.permits);
        let (idle, file) = (Arc::clone(&self.idle), Arc::clone(&self.file));
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            return begin(permit, idle, file, query).await.map_err(panicked)?;
        }
        // The semaphore gives a permit to the waiter at the head of its queue even where that one is never polled again. This
        // task is.
        let waiting = tokio::spawn(async move {
            let permit =
                permits.acquire_owned().await.map_err(|_| broken("the readers have ended", &file))?;
            let path = Arc::clone(&file);
            begin(permit, idle, file, query).await.map_err(|_| broken("a query panicked", &path))?
        });
        AbortOnDropHandle::new(waiting).await.map_err(panicked)?
    }
}

/// Runs a query on a thread that may block, which holds the permit until the query has ended.
fn begin<T, F>(
    permit: OwnedSemaphorePermit,
    idle: Arc<Mutex<Vec<Connection>>>,
    file: Arc<DatabaseFile>,
    query: F,
) -> JoinHandle<Result<T, Error>>
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
{
    spawn_blocking(move || {
        let outcome = read(&idle, &file, query).map_err(|fault| fault.into_error(file.path()));
        drop(permit);
        outcome
    })
}

fn broken(what: &str, file: &DatabaseFile) -> Error {
    Fault::Broken(Cause::text(what)).into_error(file.path())
}

fn read<T>(
    idle: &Mutex<Vec<Connection>>,
    file: &DatabaseFile,
    query: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let waiting = lock(idle).pop();
    let mut connection = match waiting {
        Some(connection) => connection,
        None => {
            let connection = file.reader()?;
            // Another file under this name is not the store, whatever stands in it.
            file.check_in_place()?;
            connection
        }
    };
    let transaction = connection.transaction()?;
    let outcome = query(&transaction);
    drop(transaction);
    // After a failure the next query gets a fresh connection: this one may be what failed.
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

    use super::*;

    fn readers() -> (tempfile::TempDir, Readers) {
        let folder = tempfile::tempdir().unwrap();
        let file =
            DatabaseFile::find_or_make(&folder.path().join("skep.db"), Duration::from_secs(5)).unwrap();
        (folder, Readers::new(Arc::new(file)))
    }

    #[tokio::test]
    async fn queries_that_are_not_polled_again_keep_no_other_from_running() {
        let (_folder, readers) = readers();
        let mut forgotten: Vec<_> =
            (0..40).map(|number| Box::pin(readers.run(move |_| Ok(number)))).collect();
        for query in &mut forgotten {
            // Some of them wait for a permit now.
            let _ = query.now_or_never();
        }
        let answer = tokio::time::timeout(Duration::from_secs(30), readers.run(|_| Ok(7)));
        assert_eq!(answer.await.expect("the forgotten queries hold all permits").unwrap(), 7);
        // None of them is lost either.
        for (number, query) in forgotten.into_iter().enumerate() {
            assert_eq!(query.await.unwrap(), number);
        }
    }

    #[tokio::test]
    async fn a_query_that_is_dropped_while_it_waits_is_not_run() {
        let (_folder, readers) = readers();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let busy: Vec<_> = (0..CONNECTIONS)
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
        let (ran, runs) = mpsc::channel();
        let mut dropped = Box::pin(readers.run(move |_| Ok(ran.send(()))));
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        drop(release);
        for query in busy {
            query.await.unwrap();
        }
        readers.run(|_| Ok(())).await.unwrap();
        assert!(runs.recv().is_err(), "it ran for nobody");
    }
}
