//! The disk space that the files of an account may occupy in its workspace, where `max_disk_mb` limits the account.
//!
//! What the server itself writes is added to a sum before it is written. What git writes is known only once the files are
//! counted, which they are while git runs and before the next change. A change is refused by a count that is newer than the
//! request, so that files that were removed make room at once.

mod counter;
mod space;
mod sum;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use skep_api::{AccountId, Failure, keys::Limits};
use skep_store::Store;
use skep_swarm::WorkspaceFiles;
use tokio::time::timeout;

use self::counter::Counter;
pub(crate) use self::space::AccountSpace;
use crate::swarm_handle::SwarmHandle;

/// When this many accounts have a counter, counters that no request uses are dropped. The next request of such an account
/// creates a new one and counts the files.
const MAX_IDLE_COUNTERS: usize = 1_024;
/// How long a status waits for a count. Then it shows the last one.
const STATUS_TIME_LIMIT: Duration = Duration::from_secs(2);

/// The files of all accounts that have a limit. Cheap to clone.
#[derive(Clone)]
pub struct WorkspaceDisk(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    counters: Mutex<HashMap<AccountId, Arc<Counter>>>,
}

impl WorkspaceDisk {
    /// Nothing is counted yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(Arc::new(Inner { store, counters: Mutex::default() }))
    }

    /// The disk space of an account for one request. `None` if it has no limit.
    pub(crate) fn of(&self, account: AccountId, limits: &Limits, vms: &SwarmHandle) -> Option<AccountSpace> {
        limits.max_disk_mb?;
        Some(AccountSpace::new(Arc::clone(&self.0.store), self.counter(account), *limits, vms.clone()))
    }

    /// Has the files of an account counted before their next change.
    pub(crate) fn set_stale(&self, account: AccountId) {
        self.counter(account).set_stale();
    }

    fn counter(&self, account: AccountId) -> Arc<Counter> {
        let mut counters = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        if counters.len() >= MAX_IDLE_COUNTERS && !counters.contains_key(&account) {
            counters.retain(|_, counter| Arc::strong_count(counter) > 1);
        }
        Arc::clone(counters.entry(account).or_insert_with(|| Arc::new(Counter::new(account))))
    }
}

#[async_trait]
impl WorkspaceFiles for WorkspaceDisk {
    async fn used_bytes(&self, account: AccountId) -> u64 {
        let counter = self.counter(account);
        // A count that fails or takes longer is reported to the requests that depend on it.
        if counter.is_stale() || counter.is_due_for_status() {
            let _ = timeout(STATUS_TIME_LIMIT, counter.count(&*self.0.store)).await;
        }
        let files = counter.sum().files();
        files.unwrap_or_default()
    }

    fn used_beside(&self, account: AccountId, outside: u64) -> Option<u64> {
        let counter = self.counter(account);
        let mut sum = counter.sum();
        sum.set_outside(outside);
        sum.files()
    }

    async fn count(&self, account: AccountId) -> Result<(), Failure> {
        self.counter(account).count(&*self.0.store).await
    }
}
