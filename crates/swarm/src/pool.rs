//! The pool of parked VMs. Boots take VMs from it, and the refill task restores new ones.
//!
//! ```text
//! refill ── ParkedVm::create ──► pool ── take ──► boot
//!    ▲                            │
//!    └───────── changed ──────────┘   (taken, ended, evicted)
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use skep_api::{
    VmId,
    swarm::{BASE_TEMPLATE, PoolState},
};
use tokio::sync::{Notify, watch};

use crate::{
    budget::{Budget, ParkedReservation},
    demand::Demand,
    parked_vm::ParkedVm,
    restore::Restorer,
};

pub(crate) struct Pool {
    pub(crate) restorer: Arc<Restorer>,
    pub(crate) budget: Arc<Budget>,
    size: u32,
    /// Memory of a guest of the base template, in MiB, which is reserved before the launch.
    pub(crate) guest_mb: u64,
    inventory: Mutex<Inventory>,
    /// Notified when a VM was taken, added or removed.
    pub(crate) changed: Notify,
    /// Number of boots in progress.
    pub(crate) boots_in_progress: watch::Sender<usize>,
}

/// A parked VM and its reservation, which ends when the VM is taken.
struct PooledVm {
    parked: ParkedVm,
    _space: ParkedReservation,
}

#[derive(Default)]
struct Inventory {
    /// By template, oldest first.
    ready: BTreeMap<String, VecDeque<PooledVm>>,
    /// Number of restores in progress, by template.
    restoring: BTreeMap<String, u32>,
    demand: Demand,
}

impl Inventory {
    fn ready(&self, template: &str) -> u32 {
        self.ready.get(template).map_or(0, |shelf| u32::try_from(shelf.len()).unwrap_or(u32::MAX))
    }
}

/// Counts a boot as in progress until it is dropped.
pub(crate) struct BootGuard<'a>(&'a watch::Sender<usize>);

impl Drop for BootGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|boots| *boots -= 1);
    }
}

impl Pool {
    pub(crate) fn new(restorer: Arc<Restorer>, budget: Arc<Budget>, size: u32, guest_mb: u64) -> Arc<Self> {
        Arc::new(Self {
            restorer,
            budget,
            size,
            guest_mb,
            inventory: Mutex::default(),
            changed: Notify::new(),
            boots_in_progress: watch::Sender::new(0),
        })
    }

    /// Delays refills while the guard exists.
    pub(crate) fn guard_boot(&self) -> BootGuard<'_> {
        self.boots_in_progress.send_modify(|boots| *boots += 1);
        BootGuard(&self.boots_in_progress)
    }

    /// Takes up to `count` VMs of a template, oldest first.
    pub(crate) fn take(&self, template: &str, count: u32) -> Vec<ParkedVm> {
        let mut shelves = self.inventory();
        shelves.demand.record_boots(template, count, Instant::now());
        let shelf = shelves.ready.entry(template.to_owned()).or_default();
        let taken = shelf.len().min(count as usize);
        let taken: Vec<ParkedVm> = shelf.drain(..taken).map(|waiting| waiting.parked).collect();
        drop(shelves);
        self.changed.notify_waiters();
        taken
    }

    /// Ends parked VMs until the VMs of accounts and the parked ones together fit the machine.
    pub(crate) async fn evict_if_overcommitted(&self) {
        loop {
            // Subscribed before the check, so that no change in between is missed.
            let changed = self.changed.notified();
            if !self.budget.is_overcommitted() {
                return;
            }
            match self.pop_any() {
                Some(waiting) => self.restorer.end_unrecorded(waiting.parked.id()).await,
                None => changed.await,
            }
        }
    }

    pub(crate) fn state(&self) -> BTreeMap<String, PoolState> {
        let shelves = self.inventory();
        let shares = shelves.demand.shares(self.size, BASE_TEMPLATE, Instant::now());
        shares
            .into_iter()
            .map(|(name, target)| {
                let ready = shelves.ready(&name);
                (name, PoolState { ready, target })
            })
            .filter(|(_, state)| state.ready > 0 || state.target > 0)
            .collect()
    }

    /// A template below its share. Counts a restore of it as in progress.
    pub(super) fn next_wanted(&self) -> Option<String> {
        let mut shelves = self.inventory();
        let shares = shelves.demand.shares(self.size, BASE_TEMPLATE, Instant::now());
        let (name, _) = shares.into_iter().find(|(name, target)| {
            shelves.ready(name) + shelves.restoring.get(name).copied().unwrap_or(0) < *target
        })?;
        *shelves.restoring.entry(name.clone()).or_default() += 1;
        Some(name)
    }

    /// Ends a restore in progress: adds the VM to the pool, or nothing if the restore failed.
    pub(super) fn finish_restore(
        self: &Arc<Self>,
        template: &str,
        parked: Option<(ParkedVm, ParkedReservation)>,
    ) {
        let mut shelves = self.inventory();
        if let Some(coming) = shelves.restoring.get_mut(template) {
            *coming -= 1;
        }
        if let Some((parked, space)) = parked {
            let (pool, guest, id) = (Arc::clone(self), parked.vm.guest.clone(), parked.id());
            let template = template.to_owned();
            shelves.ready.entry(template.clone()).or_default().push_back(PooledVm { parked, _space: space });
            tokio::spawn(async move {
                guest.closed().await;
                pool.remove_ended(&template, id).await;
            });
        }
        drop(shelves);
        self.changed.notify_waiters();
    }

    /// Removes a parked VM that ended. Does nothing if it was taken meanwhile.
    async fn remove_ended(&self, template: &str, id: VmId) {
        let dead = {
            let mut shelves = self.inventory();
            let shelf = shelves.ready.entry(template.to_owned()).or_default();
            let at = shelf.iter().position(|waiting| waiting.parked.id() == id);
            at.and_then(|at| shelf.remove(at))
        };
        if dead.is_some() {
            tracing::warn!(vm = %id, "VM {id} of the pool ended by itself");
            self.restorer.end_unrecorded(id).await;
            drop(dead);
            self.changed.notify_waiters();
        }
    }

    fn pop_any(&self) -> Option<PooledVm> {
        self.inventory().ready.values_mut().find_map(VecDeque::pop_front)
    }

    fn inventory(&self) -> MutexGuard<'_, Inventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
