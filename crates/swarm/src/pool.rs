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
    thread::available_parallelism,
    time::Instant,
};

use skep_api::{AccountId, TemplateId, VmId, swarm::PoolState};
use tokio::sync::{Notify, watch};

use crate::{
    budget::{Budget, ParkedReservation},
    demand::Demand,
    parked_vm::ParkedVm,
    restore::Restorer,
    template::BootTemplate,
};

/// Default size per processor: enough for a burst of boots until the pool is refilled.
const SIZE_PER_CORE: u32 = 4;
/// Upper limit of the default size.
const MAX_DEFAULT_SIZE: u32 = 32;

pub(crate) struct Pool {
    pub(crate) restorer: Arc<Restorer>,
    pub(crate) budget: Arc<Budget>,
    size: u32,
    base: Arc<BootTemplate>,
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
    ready: BTreeMap<TemplateId, VecDeque<PooledVm>>,
    /// Number of restores in progress, by template.
    restoring: BTreeMap<TemplateId, u32>,
    demand: Demand,
    /// The templates with boots, as the last boot found them.
    templates: BTreeMap<TemplateId, Arc<BootTemplate>>,
}

impl Inventory {
    fn ready(&self, template: TemplateId) -> u32 {
        self.ready.get(&template).map_or(0, |shelf| u32::try_from(shelf.len()).unwrap_or(u32::MAX))
    }

    fn restoring(&self, template: TemplateId) -> u32 {
        self.restoring.get(&template).copied().unwrap_or(0)
    }

    /// All parked VMs, those included that are being restored.
    fn total(&self) -> u32 {
        let ready: u32 = self.ready.keys().map(|template| self.ready(*template)).sum();
        ready + self.restoring.values().sum::<u32>()
    }

    /// How many parked VMs a boot that takes `taken` VMs of a template leaves.
    fn left_by(&self, template: TemplateId, taken: u32) -> impl Iterator<Item = (TemplateId, u32)> {
        self.ready.keys().map(move |id| {
            let ready = self.ready(*id);
            (*id, if *id == template { ready.saturating_sub(taken) } else { ready })
        })
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
    pub(crate) fn new(
        restorer: Arc<Restorer>,
        budget: Arc<Budget>,
        size: u32,
        base: Arc<BootTemplate>,
    ) -> Arc<Self> {
        let inventory =
            Inventory { templates: BTreeMap::from([(base.id, Arc::clone(&base))]), ..Inventory::default() };
        Arc::new(Self {
            restorer,
            budget,
            size,
            base,
            inventory: Mutex::new(inventory),
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
    pub(crate) fn take(&self, template: &Arc<BootTemplate>, count: u32) -> Vec<ParkedVm> {
        if !template.is_pooled() {
            return Vec::new();
        }
        let mut shelves = self.inventory();
        shelves.demand.record_boots(template.id, count, Instant::now());
        shelves.templates.insert(template.id, Arc::clone(template));
        let shelf = shelves.ready.entry(template.id).or_default();
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
            let (changed, freed) = (self.changed.notified(), self.budget.parked_freed.notified());
            if !self.budget.is_overcommitted() {
                return;
            }
            match self.pop_any() {
                Some(waiting) => {
                    self.restorer.end_unrecorded(waiting.parked.id()).await;
                }
                // The others are being restored, or others end them: boots at the same time, or the refill.
                None => tokio::select! {
                    () = changed => {}
                    () = freed => {}
                },
            }
        }
    }

    /// Ends all parked VMs if the memory of the machine is low.
    pub(crate) async fn evict_if_memory_is_low(&self) {
        if !self.budget.lacks_memory(0) {
            return;
        }
        while let Some(waiting) = self.pop_any() {
            self.restorer.end_unrecorded(waiting.parked.id()).await;
            // The refill checks the memory of the machine often from now on, and a full pool rarely.
            self.changed.notify_waiters();
        }
    }

    /// The parked VMs of a template.
    pub(crate) fn ready(&self, template: TemplateId) -> u32 {
        self.inventory().ready(template)
    }

    /// How many parked VMs a boot that takes `taken` VMs of a template leaves.
    pub(crate) fn evictable(&self, template: TemplateId, taken: u32) -> u32 {
        self.inventory().left_by(template, taken).map(|(_, left)| left).sum()
    }

    /// Ends one of the parked VMs that a boot of `taken` VMs of a template leaves. Returns whether there was one.
    pub(crate) async fn evict_one(&self, template: TemplateId, taken: u32) -> bool {
        let evicted = {
            let mut shelves = self.inventory();
            let id = shelves.left_by(template, taken).find(|(_, left)| *left > 0).map(|(id, _)| id);
            id.and_then(|id| shelves.ready.get_mut(&id)?.pop_front())
        };
        let Some(waiting) = evicted else { return false };
        self.restorer.end_unrecorded(waiting.parked.id()).await;
        true
    }

    /// While the pool is full, ends the oldest parked VMs of templates that have more than their share.
    pub(super) async fn end_surplus(&self) {
        while let Some(waiting) = self.pop_surplus() {
            self.restorer.end_unrecorded(waiting.parked.id()).await;
        }
    }

    fn pop_surplus(&self) -> Option<PooledVm> {
        let mut shelves = self.inventory();
        if shelves.total() < self.size {
            return None;
        }
        let shares = shelves.demand.shares(self.size, self.base.id, Instant::now());
        let has_surplus = |id: &TemplateId| {
            let ready = shelves.ready(*id);
            ready > 0 && ready + shelves.restoring(*id) > shares.get(id).copied().unwrap_or(0)
        };
        let id = shelves.ready.keys().copied().find(has_surplus)?;
        shelves.ready.get_mut(&id)?.pop_front()
    }

    /// The pool of each template that the account sees, or of all templates, by name. Pools of templates with the same
    /// name, which belong to different accounts, are added up.
    pub(crate) fn state(&self, account: Option<AccountId>) -> BTreeMap<String, PoolState> {
        let shelves = self.inventory();
        let shares = shelves.demand.shares(self.size, self.base.id, Instant::now());
        let mut states = BTreeMap::new();
        for (id, target) in shares {
            let Some(template) = shelves.templates.get(&id) else { continue };
            let ready = shelves.ready(id);
            if (ready > 0 || target > 0) && account.is_none_or(|account| template.is_visible_to(account)) {
                let state = states.entry(template.name.clone()).or_insert(PoolState { ready: 0, target: 0 });
                *state = PoolState { ready: state.ready + ready, target: state.target + target };
            }
        }
        states
    }

    /// A template below its share whose guest fits the budget, with the reservation for it. Counts a restore of it as
    /// in progress.
    pub(super) fn begin_restore(&self) -> Option<(TemplateId, ParkedReservation)> {
        let mut shelves = self.inventory();
        if shelves.total() >= self.size {
            return None;
        }
        let shares = shelves.demand.shares(self.size, self.base.id, Instant::now());
        let (id, space) = shares.into_iter().find_map(|(id, target)| {
            let coming = shelves.restoring(id);
            let template = shelves.templates.get(&id).filter(|_| shelves.ready(id) + coming < target)?;
            Some((id, self.budget.reserve_parked(template.memory_mb)?))
        })?;
        *shelves.restoring.entry(id).or_default() += 1;
        Some((id, space))
    }

    /// Ends the parked VMs of a template, and restores no further ones until it is booted again.
    pub(crate) async fn forget(&self, template: TemplateId) {
        let parked = {
            let mut shelves = self.inventory();
            shelves.demand.forget(template);
            if template != self.base.id {
                shelves.templates.remove(&template);
            }
            shelves.ready.remove(&template).unwrap_or_default()
        };
        for waiting in parked {
            self.restorer.end_unrecorded(waiting.parked.id()).await;
        }
        self.changed.notify_waiters();
    }

    /// Ends a restore in progress: adds the VM to the pool, or nothing if the restore failed.
    pub(super) fn finish_restore(
        self: &Arc<Self>,
        template: TemplateId,
        parked: Option<(ParkedVm, ParkedReservation)>,
    ) {
        let mut shelves = self.inventory();
        if let Some(coming) = shelves.restoring.get_mut(&template) {
            *coming -= 1;
        }
        if let Some((parked, space)) = parked {
            let (pool, guest, id) = (Arc::clone(self), parked.vm.guest.clone(), parked.id());
            shelves.ready.entry(template).or_default().push_back(PooledVm { parked, _space: space });
            tokio::spawn(async move {
                guest.closed().await;
                pool.remove_ended(template, id).await;
            });
        }
        drop(shelves);
        self.changed.notify_waiters();
    }

    /// Removes a parked VM that ended. Does nothing if it was taken meanwhile.
    async fn remove_ended(&self, template: TemplateId, id: VmId) {
        let dead = {
            let mut shelves = self.inventory();
            let shelf = shelves.ready.entry(template).or_default();
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

/// The default size: at most a quarter of the VMs that fit the machine, because idle VMs take memory from the page cache.
pub(crate) fn default_size(max_vms: u32) -> u32 {
    let cores = available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    (cores * SIZE_PER_CORE).min(max_vms / 4).min(MAX_DEFAULT_SIZE)
}
