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
    budget::{Budget, ParkingSpace},
    demand::Demand,
    park::Parked,
    restore::Restorer,
};

pub(crate) struct Pool {
    pub(crate) restorer: Arc<Restorer>,
    pub(crate) budget: Arc<Budget>,
    size: u32,
    shelves: Mutex<Shelves>,
    /// Notified when a VM was taken, added or removed.
    pub(crate) changed: Notify,
    /// Number of boots in progress.
    pub(crate) boots: watch::Sender<usize>,
}

/// A parked VM and its reservation, which ends when the VM is taken.
struct Waiting {
    parked: Parked,
    _space: ParkingSpace,
}

#[derive(Default)]
struct Shelves {
    /// By template, oldest first.
    ready: BTreeMap<String, VecDeque<Waiting>>,
    /// Number of restores in progress, by template.
    coming: BTreeMap<String, u32>,
    demand: Demand,
}

impl Shelves {
    fn ready(&self, template: &str) -> u32 {
        self.ready.get(template).map_or(0, |shelf| u32::try_from(shelf.len()).unwrap_or(u32::MAX))
    }
}

/// Counts a boot as in progress until it is dropped.
pub(crate) struct BootUnderWay<'a>(&'a watch::Sender<usize>);

impl Drop for BootUnderWay<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|boots| *boots -= 1);
    }
}

impl Pool {
    pub(crate) fn new(restorer: Arc<Restorer>, budget: Arc<Budget>, size: u32) -> Arc<Self> {
        Arc::new(Self {
            restorer,
            budget,
            size,
            shelves: Mutex::default(),
            changed: Notify::new(),
            boots: watch::Sender::new(0),
        })
    }

    /// Delays refills while the guard exists.
    pub(crate) fn boot_under_way(&self) -> BootUnderWay<'_> {
        self.boots.send_modify(|boots| *boots += 1);
        BootUnderWay(&self.boots)
    }

    /// Takes up to `count` VMs of a template, oldest first.
    pub(crate) fn take(&self, template: &str, count: u32) -> Vec<Parked> {
        let mut shelves = self.shelves();
        shelves.demand.note(template, count, Instant::now());
        let shelf = shelves.ready.entry(template.to_owned()).or_default();
        let taken = shelf.len().min(count as usize);
        let taken: Vec<Parked> = shelf.drain(..taken).map(|waiting| waiting.parked).collect();
        drop(shelves);
        self.changed.notify_waiters();
        taken
    }

    /// Ends parked VMs until the VMs of accounts and the parked ones together fit the machine.
    pub(crate) async fn make_room(&self) {
        loop {
            // Subscribed before the check, so that no change in between is missed.
            let changed = self.changed.notified();
            if !self.budget.is_overcommitted() {
                return;
            }
            match self.pop_any() {
                Some(waiting) => self.restorer.clear_away(waiting.parked.id()).await,
                None => changed.await,
            }
        }
    }

    pub(crate) fn state(&self) -> BTreeMap<String, PoolState> {
        let shelves = self.shelves();
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
        let mut shelves = self.shelves();
        let shares = shelves.demand.shares(self.size, BASE_TEMPLATE, Instant::now());
        let (name, _) = shares.into_iter().find(|(name, target)| {
            shelves.ready(name) + shelves.coming.get(name).copied().unwrap_or(0) < *target
        })?;
        *shelves.coming.entry(name.clone()).or_default() += 1;
        Some(name)
    }

    /// Ends a restore in progress: adds the VM to the pool, or nothing if the restore failed.
    pub(super) fn arrived(self: &Arc<Self>, template: &str, parked: Option<(Parked, ParkingSpace)>) {
        let mut shelves = self.shelves();
        if let Some(coming) = shelves.coming.get_mut(template) {
            *coming -= 1;
        }
        if let Some((parked, space)) = parked {
            let (pool, guest, id) = (Arc::clone(self), parked.vm.guest.clone(), parked.id());
            let template = template.to_owned();
            shelves.ready.entry(template.clone()).or_default().push_back(Waiting { parked, _space: space });
            tokio::spawn(async move {
                guest.closed().await;
                pool.died(&template, id).await;
            });
        }
        drop(shelves);
        self.changed.notify_waiters();
    }

    /// Removes a parked VM that ended. Does nothing if it was taken meanwhile.
    async fn died(&self, template: &str, id: VmId) {
        let dead = {
            let mut shelves = self.shelves();
            let shelf = shelves.ready.entry(template.to_owned()).or_default();
            let at = shelf.iter().position(|waiting| waiting.parked.id() == id);
            at.and_then(|at| shelf.remove(at))
        };
        if dead.is_some() {
            tracing::warn!(vm = %id, "VM {id} of the pool ended by itself");
            self.restorer.clear_away(id).await;
            drop(dead);
            self.changed.notify_waiters();
        }
    }

    fn pop_any(&self) -> Option<Waiting> {
        self.shelves().ready.values_mut().find_map(VecDeque::pop_front)
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
