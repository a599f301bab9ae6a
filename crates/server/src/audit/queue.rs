//! The queue of audit entries in front of the store: requests do not wait for the disk, and no entry is lost when the
//! queue is full.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use skep_store::{AuditStore, NewAuditEntry};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Entries that the queue holds; one with an egress policy counts as one more for each [`POLICY_BYTES`]. When it is full,
/// requests wait before they are answered.
const CAPACITY: usize = 4_096;
const POLICY_BYTES: usize = 1_024;
/// Entries of one batch. A larger batch would delay other writers of the store.
const BATCH_ENTRIES: usize = 512;
/// Time for entries to accumulate before a batch is written.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Delay before a failed write is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Attempts to write the remaining entries at shutdown.
const SHUTDOWN_ATTEMPTS: u32 = 3;

/// The entries that are not written yet. Clones are cheap and share one queue.
#[derive(Debug, Clone)]
pub struct AuditQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    waiting: Mutex<VecDeque<Waiting>>,
    capacity: Arc<Semaphore>,
    entry_added: Notify,
}

/// An entry, and the permit that it holds until it is written.
#[derive(Debug)]
struct Waiting {
    entry: NewAuditEntry,
    _permit: OwnedSemaphorePermit,
}

impl Default for AuditQueue {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl AuditQueue {
    fn with_capacity(entries: usize) -> Self {
        Self(Arc::new(Inner {
            waiting: Mutex::default(),
            capacity: Arc::new(Semaphore::new(entries)),
            entry_added: Notify::new(),
        }))
    }

    /// Waits until there is capacity for an entry of this [`cost`].
    pub(super) async fn wait_for_capacity(&self, cost: u32) {
        // The semaphore is never closed. `add` takes permits later; if another task is faster, the caller waits again.
        drop(self.0.capacity.acquire_many(cost).await);
    }

    /// Adds an entry. A full queue returns it.
    pub(super) fn add(&self, entry: NewAuditEntry) -> Result<(), Box<NewAuditEntry>> {
        let Ok(permit) = Arc::clone(&self.0.capacity).try_acquire_many_owned(cost(&entry)) else {
            return Err(Box::new(entry));
        };
        self.lock().push_back(Waiting { entry, _permit: permit });
        self.0.entry_added.notify_one();
        Ok(())
    }

    /// Writes a batch, and returns whether entries are left. Entries that could not be written stay in the queue.
    async fn write_batch(&self, store: &dyn AuditStore) -> Result<bool, skep_store::Error> {
        // Entries leave the queue once they are durable, because this future may be dropped at any `await`. Writing an
        // entry twice has no effect.
        let batch: Vec<NewAuditEntry> =
            self.lock().iter().take(BATCH_ENTRIES).map(|waiting| waiting.entry.clone()).collect();
        let written = batch.len();
        if written > 0 {
            store.record_audit(batch).await?;
        }
        let mut waiting = self.lock();
        waiting.drain(..written);
        Ok(!waiting.is_empty())
    }

    /// Writes entries soon after they were added, until it is dropped. Must not run twice at the same time.
    pub async fn run(&self, store: &dyn AuditStore) -> Infallible {
        loop {
            match self.write_batch(store).await {
                Ok(true) => {}
                Ok(false) => {
                    self.0.entry_added.notified().await;
                    tokio::time::sleep(BATCH_DELAY).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "audit entries could not be written; they stay queued");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Writes all remaining entries, at shutdown. Those that cannot be written are logged.
    pub async fn write_all(&self, store: &dyn AuditStore) {
        let mut failed = 0;
        while failed < SHUTDOWN_ATTEMPTS {
            match self.write_batch(store).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    failed += 1;
                    tracing::warn!(%error, "the remaining audit entries could not be written");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
        for Waiting { entry, .. } in self.lock().drain(..) {
            log(&entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        // The queue is consistent after any panic.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much of the capacity an entry takes.
pub(super) fn cost(entry: &NewAuditEntry) -> u32 {
    let policy = entry.entry.egress.as_ref().map_or(0, |policy| policy.json_bytes().div_ceil(POLICY_BYTES));
    // A policy has at most 16 KiB.
    u32::try_from(1 + policy).unwrap_or(u32::MAX)
}

/// Writes an entry to the log, when the store does not take it.
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
        egress = ?entry.egress,
        status = ?entry.outcome.status,
        "request {}: its audit entry could not be written to the store; this line is the only record of it",
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
        egress::EgressPolicy,
    };
    use skep_store::{
        AccountStore, AuditFilter, EnsureDefaultAccount, ListAudit, SqliteSettings, SqliteStore,
    };
    use tempfile::TempDir;

    use super::*;

    async fn store() -> (TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(SqliteSettings::at(folder.path().join("skep.db"))).await.unwrap();
        (folder, store)
    }

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
            egress: None,
            outcome,
            request_id: number.to_string(),
        };
        NewAuditEntry { id: AuditId::generate(), account: None, entry }
    }

    async fn written(store: &SqliteStore) -> Vec<String> {
        let command = EnsureDefaultAccount { roots: Vec::new(), at: Timestamp::now() };
        let account = store.ensure_default_account(command).await.unwrap().id;
        let filter = AuditFilter::default();
        let query = ListAudit { account, include_unattributed: true, filter, limit: 100_000, before: None };
        let page = store.list_audit(query).await.unwrap();
        page.entries.into_iter().map(|entry| entry.request_id).collect()
    }

    #[tokio::test]
    async fn a_full_queue_blocks_and_loses_nothing() {
        let (_folder, store) = store().await;
        let queue = AuditQueue::with_capacity(2);
        queue.add(entry(1)).unwrap();
        queue.add(entry(2)).unwrap();
        let refused = queue.add(entry(3)).unwrap_err();
        let waits = queue.wait_for_capacity(1);
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

    #[test]
    fn an_entry_with_a_large_policy_takes_more_of_the_queue() {
        let hosts: Vec<String> = (0..64).map(|n| format!("{n:0>63}.example.com")).collect();
        let mut large = entry(1);
        large.entry.egress = Some(EgressPolicy::listing(&hosts).unwrap());
        assert_eq!((cost(&entry(1)), cost(&large)), (1, 6));
        let queue = AuditQueue::with_capacity(10);
        queue.add(large.clone()).unwrap();
        queue.add(large).unwrap_err();
    }

    #[tokio::test]
    async fn a_cancelled_batch_is_written_once() {
        let (_folder, store) = store().await;
        let queue = AuditQueue::default();
        for number in 0..BATCH_ENTRIES + 10 {
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
        assert_eq!(numbers, (0..BATCH_ENTRIES + 10).collect::<Vec<_>>());
        assert_eq!(queue.0.capacity.available_permits(), CAPACITY, "all places are free again");
    }

    #[tokio::test]
    async fn rejected_entries_stay_queued() {
        let (folder, store) = store().await;
        let queue = AuditQueue::default();
        queue.add(entry(1)).unwrap();
        drop(folder);
        queue.write_batch(&store).await.unwrap_err();
        assert_eq!(queue.lock().len(), 1);
    }
}
