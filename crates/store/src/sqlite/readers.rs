//! A few connections that read beside the writer, on threads that may block.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

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
    pub(super) async fn run<T, F>(&self, query: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let ended = |what: &str| Fault::Broken(Cause::text(what)).into_error(self.file.path());
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_owned().await.map_err(|_| ended("the readers have ended"))?;
        let (idle, file) = (Arc::clone(&self.idle), Arc::clone(&self.file));
        let answer = tokio::task::spawn_blocking(move || {
            let outcome = read(&idle, &file, query).map_err(|fault| fault.into_error(file.path()));
            drop(permit);
            outcome
        });
        answer.await.map_err(|_| ended("a query panicked"))?
    }
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
