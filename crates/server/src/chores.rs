//! What the server does beside answering, as long as it runs and once more at its end.

use std::{convert::Infallible, sync::Arc};

use skep_store::Store;

use crate::{
    audit::AuditQueue,
    events::Tail,
    key_uses::KeyUses,
    retention::Retention,
    tickets::{Waiters, end_vms_without_attempt, keep_time},
    vms::Vms,
    webhooks::Dispatcher,
};

/// Work that no request waits for.
pub(crate) struct Chores {
    /// Where it is written.
    pub store: Arc<dyn Store>,
    /// Uses of keys.
    pub uses: KeyUses,
    /// Entries of the audit.
    pub audit: AuditQueue,
    /// Those who wait for work.
    pub waiters: Waiters,
    /// The newest events.
    pub tail: Tail,
    /// Events on their way to endpoints.
    pub webhooks: Dispatcher,
    /// The VMs, of which those end whose attempt at a ticket has ended.
    pub vms: Vms,
}

impl Chores {
    /// On this store, with nothing to do yet but what it holds.
    pub(crate) fn new(store: Arc<dyn Store>, webhooks: Dispatcher, vms: Vms) -> Self {
        Self {
            store,
            uses: KeyUses::default(),
            audit: AuditQueue::default(),
            waiters: Waiters::default(),
            tail: Tail::default(),
            webhooks,
            vms,
        }
    }

    /// Does it, for ever.
    pub(crate) async fn regularly(&self) -> Infallible {
        let store = &*self.store;
        tokio::select! {
            never = self.uses.write_regularly(store) => never,
            never = self.audit.write_regularly(store) => never,
            never = Retention::default().keep(store) => never,
            never = self.waiters.wake(store) => never,
            never = self.tail.read(store) => never,
            never = self.webhooks.deliver() => never,
            never = keep_time(Arc::clone(&self.store)) => never,
            never = end_vms_without_attempt(store, self.vms.clone()) => never,
        }
    }

    /// Writes what is left.
    pub(crate) async fn finish(&self) {
        self.audit.write_all(&*self.store).await;
        self.uses.write(&*self.store).await;
    }
}
