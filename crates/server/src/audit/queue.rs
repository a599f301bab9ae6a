//! Entries on their way to the store: no request waits for the disk, and none is lost where there is no room.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use skep_store::{NewAuditEntry, Store};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Entries that may wait; who comes then waits for room.
const ROOM: usize = 4_096;
/// Entries of one batch: more would make other writers wait.
const BATCH: usize = 512;
/// How long entries gather before a batch is written.
const GATHER: Duration = Duration::from_millis(100);
/// How long to wait before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often what is left at the end is tried.
const LAST_TRIES: u32 = 3;

/// Entries that are not yet written. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct AuditQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    waiting: Mutex<VecDeque<Waiting>>,
    room: Arc<Semaphore>,
    more: Notify,
}

/// An entry, and its place in the queue until it is written.
#[derive(Debug)]
struct Waiting {
    entry: NewAuditEntry,
    _place: OwnedSemaphorePermit,
}

impl Default for AuditQueue {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl AuditQueue {
    fn with_room(entries: usize) -> Self {
        Self(Arc::new(Inner {
            waiting: Mutex::default(),
            room: Arc::new(Semaphore::new(entries)),
            more: Notify::new(),
        }))
    }

    /// Waits until there is room for one more entry.
    pub(super) async fn wait_for_room(&self) {
        // Never closed. The place is taken by `add`, a moment later: whoever is quicker makes us wait again.
        drop(self.0.room.acquire().await);
    }

    /// Adds an entry; without room it comes back.
    pub(super) fn add(&self, entry: NewAuditEntry) -> Result<(), Box<NewAuditEntry>> {
        let Ok(place) = Arc::clone(&self.0.room).try_acquire_owned() else { return Err(Box::new(entry)) };
        self.lock().push_back(Waiting { entry, _place: place });
        self.0.more.notify_one();
        Ok(())
    }

    /// Writes a batch of what waits, and tells whether more is left. What could not be written stays.
    async fn write_batch(&self, store: &dyn Store) -> Result<bool, skep_store::Error> {
        // They leave the queue once they are durable: this may be dropped at every `await`. Writing one twice does nothing.
        let batch: Vec<NewAuditEntry> =
            self.lock().iter().take(BATCH).map(|waiting| waiting.entry.clone()).collect();
        let written = batch.len();
        if written > 0 {
            store.record_audit(batch).await?;
        }
        let mut waiting = self.lock();
        waiting.drain(..written);
        Ok(!waiting.is_empty())
    }

    /// Writes what comes, soon after it came, for ever. One at a time.
    pub async fn write_regularly(&self, store: &dyn Store) -> Infallible {
        loop {
            match self.write_batch(store).await {
                Ok(true) => {}
                Ok(false) => {
                    self.0.more.notified().await;
                    tokio::time::sleep(GATHER).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "entries of the audit were not written; kept for later");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Writes all that is left, at the end.
    pub async fn write_all(&self, store: &dyn Store) {
        let mut failed = 0;
        while failed < LAST_TRIES {
            match self.write_batch(store).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    failed += 1;
                    tracing::warn!(%error, "the last entries of the audit were not written");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        for Waiting { entry, .. } in self.lock().drain(..) {
            log(&entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        // A queue of entries is whole after any panic.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last resort where the store takes no entry: the log.
pub(super) fn log(entry: &NewAuditEntry) {
    let NewAuditEntry { account, entry, .. } = entry;
    let account = account.map(|account| account.to_string());
    tracing::error!(
        request_id = entry.request_id,
        ?account,
        key = ?entry.key.as_ref().map(|key| key.id.to_string()),
        address = ?entry.address,
        action = entry.action,
        resource = ?entry.resource,
        status = ?entry.outcome.status,
        "request {}: its entry in the audit could not be written and stands here alone",
        entry.request_id
    );
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::Pin, task::Poll};

    use jiff::Timestamp;
    use skep_api::{
        AuditId,
        audit::{AuditEntry, Outcome},
    };
    use skep_store::{AuditFilter, EnsureDefaultAccount, ListAudit, SqliteSettings, SqliteStore};
    use tempfile::TempDir;

    use super::*;

    async fn store() -> (TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(SqliteSettings::at(folder.path().join("skep.db"))).await.unwrap();
        (folder, store)
    }

    /// Polls once.
    async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
    }

    fn entry(number: usize) -> NewAuditEntry {
        let outcome = Outcome { status: Some(401), code: None };
        let entry = AuditEntry {
            at: Timestamp::now(),
            key: None,
            address: None,
            action: "boot".to_owned(),
            resource: None,
            outcome,
            request_id: number.to_string(),
        };
        NewAuditEntry { id: AuditId::generate(), account: None, entry }
    }

    async fn written(store: &SqliteStore) -> Vec<String> {
        let command = EnsureDefaultAccount { roots: Vec::new(), at: Timestamp::now() };
        let account = store.ensure_default_account(command).await.unwrap().id;
        let filter = AuditFilter::default();
        let query = ListAudit { account, strangers: true, filter, limit: 100_000, before: None };
        let page = store.list_audit(query).await.unwrap();
        page.entries.into_iter().map(|entry| entry.request_id).collect()
    }

    #[tokio::test]
    async fn without_room_a_caller_waits_and_nothing_is_lost() {
        let (_folder, store) = store().await;
        let queue = AuditQueue::with_room(2);
        queue.add(entry(1)).unwrap();
        queue.add(entry(2)).unwrap();
        let refused = queue.add(entry(3)).unwrap_err();
        let waits = queue.wait_for_room();
        let mut waits = std::pin::pin!(waits);
        assert!(is_pending(waits.as_mut()).await, "there is no room");
        assert!(!queue.write_batch(&store).await.unwrap());
        waits.await;
        queue.add(*refused).unwrap();
        queue.write_all(&store).await;
        let mut written = written(&store).await;
        written.sort_unstable();
        assert_eq!(written, ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn a_batch_that_is_given_up_halfway_is_written_once() {
        let (_folder, store) = store().await;
        let queue = AuditQueue::default();
        for number in 0..BATCH + 10 {
            queue.add(entry(number)).unwrap();
        }
        {
            let writing = queue.write_batch(&store);
            let mut writing = std::pin::pin!(writing);
            assert!(is_pending(writing.as_mut()).await, "the command is on its way");
        }
        queue.write_all(&store).await;
        let mut numbers: Vec<usize> =
            written(&store).await.iter().map(|text| text.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..BATCH + 10).collect::<Vec<_>>());
        assert_eq!(queue.0.room.available_permits(), ROOM, "all places are free again");
    }

    #[tokio::test]
    async fn what_the_store_does_not_take_is_kept() {
        let (folder, store) = store().await;
        let queue = AuditQueue::default();
        queue.add(entry(1)).unwrap();
        drop(folder);
        queue.write_batch(&store).await.unwrap_err();
        assert_eq!(queue.lock().len(), 1);
    }
}
