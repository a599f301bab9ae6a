//! Background tasks of the server, and the final writes at its shutdown.
//!
//! Routes never reach these tasks. Both sides share handles, which are in the modules of their subjects.

mod retention;
mod templates;
mod tickets;
mod webhooks;

use std::{convert::Infallible, sync::Arc};

use skep_store::Store;

pub(crate) use self::webhooks::Dispatcher;
use self::{
    retention::Retention,
    templates::reconcile_templates,
    tickets::{end_vms_without_attempt, run_timers},
};
use crate::{
    audit::AuditQueue, events::Tail, key_uses::KeyUses, swarm_handle::SwarmHandle,
    template_builds::TemplateBuilds, tickets::Waiters,
};

/// The state of the background tasks.
pub(crate) struct Background {
    pub store: Arc<dyn Store>,
    pub key_uses: KeyUses,
    pub audit: AuditQueue,
    /// Requests that wait for a claimable ticket.
    pub waiters: Waiters,
    pub tail: Tail,
    /// Sends events to webhook endpoints.
    pub webhooks: Dispatcher,
    /// Used to end VMs whose attempt at a ticket has ended.
    pub vms: SwarmHandle,
    /// The builds that the routes of templates begin.
    pub builds: TemplateBuilds,
}

impl Background {
    pub(crate) fn new(store: Arc<dyn Store>, webhooks: Dispatcher, vms: SwarmHandle) -> Self {
        Self {
            store,
            key_uses: KeyUses::default(),
            audit: AuditQueue::default(),
            waiters: Waiters::default(),
            tail: Tail::default(),
            webhooks,
            vms,
            builds: TemplateBuilds::default(),
        }
    }

    pub(crate) async fn run(&self) -> Infallible {
        let store = &*self.store;
        tokio::select! {
            never = self.key_uses.write_regularly(store) => never,
            never = self.audit.run(store) => never,
            never = Retention::default().enforce(store) => never,
            never = self.waiters.run(store) => never,
            never = self.tail.run(store) => never,
            never = self.webhooks.run() => never,
            never = run_timers(self.store.clone()) => never,
            never = reconcile_templates(store, self.vms.clone(), self.builds.clone()) => never,
            never = end_vms_without_attempt(store, store, self.vms.clone()) => never,
        }
    }

    pub(crate) async fn finish(&self) {
        self.audit.write_all(&*self.store).await;
        self.key_uses.write(&*self.store).await;
    }
}
