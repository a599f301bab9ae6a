//! Accounting of the machine's capacity.
//!
//! Each VM is promised the memory of its guest and the overhead of its VMM. A boot reserves its share before it begins, so
//! that concurrent boots cannot reserve the same memory twice. Parked VMs belong to no account and are ended if a boot needs
//! their capacity.

mod refusal;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, Failure, keys::Limits, swarm::Capacity};
use skep_keeper_protocol::MachineMemory;
use tokio::sync::Notify;

use refusal::check_quota;

#[derive(Debug)]
pub(crate) struct Budget {
    max_vms: u32,
    /// Memory for VMs, in MiB.
    memory_mb: u64,
    /// Memory that VMs may be promised in total, in MiB. More than the memory for VMs, because few use all of theirs.
    promises_mb: u64,
    /// Memory of each VM in addition to its guest's, in MiB.
    overhead_mb: u64,
    allocations: Mutex<Allocations>,
    /// The last sample. `None` until there is one.
    sample: Mutex<Option<MemorySample>>,
    /// Notified when the capacity of a parked VM is free.
    pub(crate) parked_freed: Notify,
}

/// The memory of the machine, and what of it VMs hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemorySample {
    pub(crate) machine: MachineMemory,
    /// Anonymous memory of all VMMs, in bytes.
    pub(crate) held_bytes: u64,
}

impl MemorySample {
    /// What VMs, and the templates and copies that they share, take, in MiB.
    fn held_mb(&self) -> u64 {
        (self.held_bytes + self.machine.templates_bytes) >> 20
    }

    fn available_mb(&self) -> u64 {
        self.machine.available_bytes >> 20
    }
}

#[derive(Debug, Default)]
struct Allocations {
    accounts: HashMap<AccountId, Usage>,
    parked: Usage,
}

#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    vms: u32,
    memory_mb: u64,
    guests_mb: u64,
}

/// The capacity that a boot requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestedCapacity {
    pub(crate) vms: u32,
    /// Memory of each guest, in MiB.
    pub(crate) guest_mb: u64,
    /// The number of VMs that are parked already, and need no further memory at first.
    pub(crate) parked: u32,
}

impl RequestedCapacity {
    /// The VMs that must be restored.
    pub(crate) fn restores(&self) -> u32 {
        self.vms.saturating_sub(self.parked)
    }

    fn guests_mb(&self) -> u64 {
        u64::from(self.vms) * self.guest_mb
    }
}

/// What idle VMs would free by going to disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeableCapacity {
    pub(crate) vms: u32,
    /// What they are promised, in MiB.
    pub(crate) promised_mb: u64,
    /// What they hold, in bytes.
    pub(crate) held_bytes: u64,
}

/// A reserved share of the budget, released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    account: AccountId,
    vms: u32,
    guest_mb: u64,
}

/// A reservation for one parked VM, released on drop.
#[derive(Debug)]
pub(crate) struct ParkedReservation {
    budget: Arc<Budget>,
    memory_mb: u64,
}

impl Budget {
    pub(crate) fn new(max_vms: u32, memory_mb: u64, promises_mb: u64, overhead_mb: u64) -> Self {
        Self {
            max_vms,
            memory_mb,
            promises_mb,
            overhead_mb,
            allocations: Mutex::default(),
            sample: Mutex::default(),
            parked_freed: Notify::new(),
        }
    }

    /// Takes a sample, by which boots are admitted.
    pub(crate) fn observe(&self, sample: MemorySample) {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample);
    }

    fn sample(&self) -> Option<MemorySample> {
        *self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the memory of the machine is too low for this number of further VMs, by the last sample.
    pub(crate) fn lacks_memory(&self, vms: u32) -> bool {
        self.sample().is_some_and(|sample| !sample.machine.admits(vms))
    }

    /// Whether the machine has no memory for parked and idle VMs, by the last sample.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.sample().is_some_and(|sample| !sample.machine.admits_parking())
    }

    /// Reserves capacity for a parked VM. `None` if there is not enough.
    pub(crate) fn reserve_parked(self: &Arc<Self>, guest_mb: u64) -> Option<ParkedReservation> {
        if self.is_memory_short() {
            return None;
        }
        let memory_mb = self.promise_of_one_mb(guest_mb);
        let mut held = self.lock();
        let total = sum(&held.accounts);
        if total.vms + held.parked.vms >= self.max_vms
            || total.memory_mb + held.parked.memory_mb + memory_mb > self.promises_mb
        {
            return None;
        }
        held.parked.vms += 1;
        held.parked.memory_mb += memory_mb;
        drop(held);
        Some(ParkedReservation { budget: self.clone(), memory_mb })
    }

    /// Whether accounts reserved capacity that parked VMs use.
    pub(crate) fn is_overcommitted(&self) -> bool {
        let held = self.lock();
        let total = sum(&held.accounts);
        held.parked.vms > 0
            && (total.vms + held.parked.vms > self.max_vms
                || total.memory_mb + held.parked.memory_mb > self.promises_mb)
    }

    /// Checks the quota of the account and the promises of the machine, and reserves nothing.
    ///
    /// # Errors
    /// Those of [`Budget::reserve`], but for the memory that is available now.
    pub(crate) fn check(
        &self,
        account: AccountId,
        limits: &Limits,
        requested: &RequestedCapacity,
    ) -> Result<(), Failure> {
        self.check_promises(&self.lock(), account, limits, requested)
    }

    /// Reserves capacity for a boot.
    ///
    /// # Errors
    /// The quota of the account, the promises of the machine or its memory do not suffice; the message has the numbers.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        account: AccountId,
        limits: &Limits,
        requested: &RequestedCapacity,
    ) -> Result<Reservation, Failure> {
        let mut held = self.lock();
        self.check_promises(&held, account, limits, requested)?;
        if let Some(sample) = self.sample().filter(|sample| !sample.machine.admits(requested.restores())) {
            return Err(self.no_memory(sum(&held.accounts), &sample, requested));
        }
        let own = held.accounts.entry(account).or_default();
        own.vms += requested.vms;
        own.memory_mb += self.promise_mb(requested);
        own.guests_mb += requested.guests_mb();
        drop(held);
        Ok(Reservation { budget: self.clone(), account, vms: requested.vms, guest_mb: requested.guest_mb })
    }

    fn check_promises(
        &self,
        held: &Allocations,
        account: AccountId,
        limits: &Limits,
        requested: &RequestedCapacity,
    ) -> Result<(), Failure> {
        check_quota(limits, held.accounts.get(&account).copied().unwrap_or_default(), requested)?;
        let total = sum(&held.accounts);
        if total.vms.saturating_add(requested.vms) > self.max_vms
            || total.memory_mb + self.promise_mb(requested) > self.promises_mb
        {
            return Err(self.no_capacity(total, requested));
        }
        Ok(())
    }

    /// Whether the machine would suffice for a boot if this capacity were free.
    pub(crate) fn suffices_with(&self, freeable: &FreeableCapacity, requested: &RequestedCapacity) -> bool {
        let total = sum(&self.lock().accounts);
        let vms = total.vms.saturating_sub(freeable.vms);
        let promised_mb = total.memory_mb.saturating_sub(freeable.promised_mb);
        vms.saturating_add(requested.vms) <= self.max_vms
            && promised_mb + self.promise_mb(requested) <= self.promises_mb
            && self.sample().is_none_or(|sample| {
                sample.machine.with_freed(freeable.held_bytes).admits(requested.restores())
            })
    }

    /// What the VMs of a boot are promised, in MiB.
    fn promise_mb(&self, requested: &RequestedCapacity) -> u64 {
        u64::from(requested.vms) * self.promise_of_one_mb(requested.guest_mb)
    }

    /// What a VM is promised: the memory of its guest and the overhead of its VMM, in MiB.
    pub(crate) fn promise_of_one_mb(&self, guest_mb: u64) -> u64 {
        guest_mb + self.overhead_mb
    }

    /// Counts a guest that already runs, without checking limits.
    pub(crate) fn reserve_running(self: &Arc<Self>, account: AccountId, guest_mb: u64) -> Reservation {
        let mut held = self.lock();
        let own = held.accounts.entry(account).or_default();
        own.vms += 1;
        own.memory_mb += self.promise_of_one_mb(guest_mb);
        own.guests_mb += guest_mb;
        drop(held);
        Reservation { budget: self.clone(), account, vms: 1, guest_mb }
    }

    /// Memory for VMs, in MiB.
    pub(crate) fn memory_mb(&self) -> u64 {
        self.memory_mb
    }

    pub(crate) fn capacity(&self) -> Capacity {
        let total = sum(&self.lock().accounts);
        let sample = self.sample();
        Capacity {
            max_vms: self.max_vms,
            memory_mb: self.promises_mb,
            memory_used_mb: total.memory_mb,
            memory_promised_mb: total.memory_mb,
            memory_held_mb: sample.map_or(0, |sample| sample.held_mb()),
            memory_available_mb: sample.map(|sample| sample.available_mb()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(used: &HashMap<AccountId, Usage>) -> Usage {
    used.values().fold(Usage::default(), |sum, used| Usage {
        vms: sum.vms + used.vms,
        memory_mb: sum.memory_mb + used.memory_mb,
        guests_mb: sum.guests_mb + used.guests_mb,
    })
}

impl Reservation {
    /// Splits off the share of one VM.
    pub(crate) fn split_one(&mut self) -> Reservation {
        self.vms -= 1;
        Reservation { budget: self.budget.clone(), account: self.account, vms: 1, guest_mb: self.guest_mb }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        if let Some(own) = held.accounts.get_mut(&self.account) {
            own.vms -= self.vms;
            own.memory_mb -= u64::from(self.vms) * self.budget.promise_of_one_mb(self.guest_mb);
            own.guests_mb -= u64::from(self.vms) * self.guest_mb;
        }
        held.accounts.retain(|_, own| own.vms > 0);
    }
}

impl Drop for ParkedReservation {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        held.parked.vms -= 1;
        held.parked.memory_mb -= self.memory_mb;
        drop(held);
        self.budget.parked_freed.notify_waiters();
    }
}
