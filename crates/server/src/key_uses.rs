//! Collects when keys were last used and writes it in batches, so that requests do not write to the store.

use std::{
    collections::HashMap,
    convert::Infallible,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use skep_api::KeyId;
use skep_store::{KeyStore, KeyUse};

/// How often uses are written.
const INTERVAL: Duration = Duration::from_secs(15);

/// Last uses that are not yet written. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct KeyUses(Arc<Mutex<HashMap<KeyId, Timestamp>>>);

impl KeyUses {
    pub fn record(&self, id: KeyId, at: Timestamp) {
        let mut uses = self.lock();
        let last = uses.entry(id).or_insert(at);
        *last = at.max(*last);
    }

    /// Writes the collected uses. Where the store fails, they are kept for the next write.
    pub async fn write(&self, store: &dyn KeyStore) {
        let collected = mem::take(&mut *self.lock());
        if collected.is_empty() {
            return;
        }
        let uses: Vec<KeyUse> = collected.into_iter().map(|(id, at)| KeyUse { id, at }).collect();
        if let Err(error) = store.record_key_uses(uses.clone()).await {
            tracing::warn!(%error, "the last uses of {} keys were not written; kept for later", uses.len());
            uses.into_iter().for_each(|used| self.record(used.id, used.at));
        }
    }

    /// Writes at intervals. Never returns.
    pub async fn write_regularly(&self, store: &dyn KeyStore) -> Infallible {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.write(store).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, Timestamp>> {
        // Every update is one insertion, so the map is valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
