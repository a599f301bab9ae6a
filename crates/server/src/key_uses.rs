//! Collects when keys and sessions were last used and writes it in batches, so that requests do not write to the store.

use std::{
    collections::HashMap,
    convert::Infallible,
    hash::Hash,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use skep_accounts::SessionHash;
use skep_api::KeyId;
use skep_store::{KeyUse, SessionUse, Store};

/// How often uses are written.
const INTERVAL: Duration = Duration::from_secs(15);

/// Last uses that are not yet written. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct KeyUses(Arc<Mutex<LastUses>>);

#[derive(Debug, Default)]
struct LastUses {
    keys: HashMap<KeyId, Timestamp>,
    sessions: HashMap<SessionHash, Timestamp>,
}

impl KeyUses {
    pub fn record(&self, id: KeyId, at: Timestamp) {
        note(&mut self.lock().keys, id, at);
    }

    pub fn record_session(&self, session: SessionHash, at: Timestamp) {
        note(&mut self.lock().sessions, session, at);
    }

    /// Writes the collected uses. Where the store fails, they are kept for the next write.
    pub async fn write(&self, store: &dyn Store) {
        let LastUses { keys, sessions } = mem::take(&mut *self.lock());
        if !keys.is_empty() {
            let uses: Vec<KeyUse> = keys.into_iter().map(|(id, at)| KeyUse { id, at }).collect();
            if let Err(error) = store.record_key_uses(uses.clone()).await {
                tracing::warn!(%error, "the last uses of {} keys were not written; kept for later", uses.len());
                uses.into_iter().for_each(|used| self.record(used.id, used.at));
            }
        }
        if !sessions.is_empty() {
            let uses: Vec<SessionUse> =
                sessions.into_iter().map(|(hash, at)| SessionUse { hash, at }).collect();
            if let Err(error) = store.record_session_uses(uses.clone()).await {
                tracing::warn!(%error, "the last uses of {} sessions were not written; kept for later", uses.len());
                uses.into_iter().for_each(|used| self.record_session(used.hash, used.at));
            }
        }
    }

    /// Writes at intervals. Never returns.
    pub async fn write_regularly(&self, store: &dyn Store) -> Infallible {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.write(store).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, LastUses> {
        // Every update is one insertion, so the map is valid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn note<K: Eq + Hash>(uses: &mut HashMap<K, Timestamp>, one: K, at: Timestamp) {
    let last = uses.entry(one).or_insert(at);
    *last = at.max(*last);
}
