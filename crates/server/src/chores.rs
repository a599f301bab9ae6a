//! Background tasks of the server, and the final writes at its shutdown.

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

/// The state of the background tasks.
pub(crate) struct Chores {
    pub store: Arc<dyn Store>,
    pub uses: KeyUses,
    pub audit: AuditQueue,
    /// Requests that wait for a claimable ticket.
    pub waiters: Waiters,
    pub tail: Tail,
    /// Sends events to webhook endpoints.
    pub webhooks: Dispatcher,
    /// Used to end VMs whose attempt at a ticket has ended.
    pub vms: Vms,
}

impl Chores {
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

    pub(crate) async fn finish(&self) {
        self.audit.write_all(&*self.store).await;
        self.uses.write(&*self.store).await;
    }
}
