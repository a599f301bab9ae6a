//! Accounting of the machine's capacity.
//!
//! Each VM is promised the memory of its guest and the overhead of its VMM. A boot reserves its share before it begins, so
//! that concurrent boots cannot reserve the same memory twice. Parked VMs belong to no account and are ended if a boot needs
//! their capacity.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, ErrorCode, Failure, keys::Limits, swarm::Capacity};
use skep_keeper_protocol::MachineMemory;

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
}

/// The memory of the machine, and what of it VMs hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemorySample {
    pub(crate) machine: MachineMemory,
    /// Anonymous memory of all VMMs, in bytes.
    pub(crate) held_bytes: u64,
}

impl MemorySample {
    /// What VMs and the templates that they share take, in MiB.
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

    /// Reserves capacity for a parked VM. `None` if there is not enough.
    pub(crate) fn reserve_parked(self: &Arc<Self>, guest_mb: u64) -> Option<ParkedReservation> {
        if self.sample().is_some_and(|sample| !sample.machine.admits_parking()) {
            return None;
        }
        let memory_mb = guest_mb + self.overhead_mb;
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

    /// Reserves capacity for `vms` guests of `guest_mb` each.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        account: AccountId,
        limits: &Limits,
        vms: u32,
        guest_mb: u64,
    ) -> Result<Reservation, Failure> {
        let mut held = self.lock();
        let own = held.accounts.get(&account).copied().unwrap_or_default();
        let total = sum(&held.accounts);
        check_quota(limits, own, vms, guest_mb)?;
        let asked_mb = u64::from(vms) * (guest_mb + self.overhead_mb);
        if let Some(sample) = self.sample().filter(|sample| !sample.machine.admits(vms)) {
            return Err(self.no_memory(total, &sample, vms, asked_mb));
        }
        if total.vms.saturating_add(vms) > self.max_vms || total.memory_mb + asked_mb > self.promises_mb {
            return Err(self.no_capacity(total, vms, asked_mb));
        }
        let own = held.accounts.entry(account).or_default();
        own.vms += vms;
        own.memory_mb += asked_mb;
        own.guests_mb += u64::from(vms) * guest_mb;
        drop(held);
        Ok(Reservation { budget: self.clone(), account, vms, guest_mb })
    }

    /// Counts a guest that already runs, without checking limits.
    pub(crate) fn reserve_running(self: &Arc<Self>, account: AccountId, guest_mb: u64) -> Reservation {
        let mut held = self.lock();
        let own = held.accounts.entry(account).or_default();
        own.vms += 1;
        own.memory_mb += guest_mb + self.overhead_mb;
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

    fn no_memory(&self, total: Usage, sample: &MemorySample, vms: u32, asked_mb: u64) -> Failure {
        Failure::new(
            ErrorCode::NoCapacity,
            format!(
                "{} MiB of memory are available on this machine, and {} MiB stay reserved{}; of the {} MiB for VMs, {} MiB \
                 are held and {} MiB promised, and {vms} VMs with {asked_mb} MiB were asked for; end some VMs or other \
                 programs, or ask for fewer",
                sample.available_mb(),
                sample.machine.reserved_bytes() >> 20,
                if sample.machine.under_pressure { " (all tasks stall for memory)" } else { "" },
                self.memory_mb,
                sample.held_mb(),
                total.memory_mb
            ),
        )
    }

    fn no_capacity(&self, total: Usage, vms: u32, asked_mb: u64) -> Failure {
        Failure::new(
            ErrorCode::NoCapacity,
            format!(
                "this machine holds {} VMs, and its {} MiB for VMs may be promised up to {} MiB; {} VMs run, {} MiB are \
                 promised to them, and {vms} VMs with {asked_mb} MiB were asked for; end some VMs or ask for fewer",
                self.max_vms, self.memory_mb, self.promises_mb, total.vms, total.memory_mb
            ),
        )
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

fn check_quota(limits: &Limits, own: Usage, vms: u32, guest_mb: u64) -> Result<(), Failure> {
    if let Some(max) = limits.max_vms
        && own.vms.saturating_add(vms) > max
    {
        let left = max.saturating_sub(own.vms);
        return Err(Failure::new(
            ErrorCode::QuotaExceeded,
            format!(
                "{vms} VMs were asked for, and {left} of this account's {max} are left; end some VMs first"
            ),
        ));
    }
    let asked_mb = u64::from(vms) * guest_mb;
    match limits.max_memory_mb {
        Some(max) if own.guests_mb + asked_mb > max => {
            let left = max.saturating_sub(own.guests_mb);
            Err(Failure::new(
                ErrorCode::QuotaExceeded,
                format!("{asked_mb} MiB were asked for, and {left} of this account's {max} MiB are left"),
            ))
        }
        _ => Ok(()),
    }
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
            own.memory_mb -= u64::from(self.vms) * (self.guest_mb + self.budget.overhead_mb);
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Limits = Limits { max_vms: None, max_memory_mb: None };

    #[test]
    fn capacity_is_not_reserved_twice_and_is_released() {
        let budget = Arc::new(Budget::new(3, 10_000, 10_000, 48));
        let account = AccountId::generate();
        let mut first = budget.reserve(account, &FREE, 2, 128).unwrap();
        let refused = budget.reserve(AccountId::generate(), &FREE, 2, 128).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoCapacity);
        assert!(refused.message.contains("holds 3 VMs"), "{}", refused.message);
        let one = first.split_one();
        drop(first);
        assert_eq!(budget.capacity().memory_used_mb, 176);
        drop(one);
        assert_eq!(budget.capacity().memory_used_mb, 0);
        budget.reserve(account, &FREE, 3, 128).unwrap();
    }

    #[test]
    fn a_guest_that_runs_already_is_counted_beyond_the_limits() {
        let budget = Arc::new(Budget::new(1, 100, 100, 48));
        let account = AccountId::generate();
        let held = [budget.reserve_running(account, 128), budget.reserve_running(account, 128)];
        assert_eq!(budget.capacity().memory_used_mb, 352);
        budget.reserve(account, &FREE, 1, 1).unwrap_err();
        drop(held);
        assert_eq!(budget.capacity().memory_used_mb, 0);
        budget.reserve(account, &FREE, 1, 1).unwrap();
    }

    #[test]
    fn memory_is_promised_up_to_a_limit_of_its_own() {
        let budget = Arc::new(Budget::new(100, 400, 1600, 48));
        assert_eq!(budget.capacity().memory_mb, 1600);
        let account = AccountId::generate();
        let _held = budget.reserve(account, &FREE, 1, 1024).unwrap();
        let refused = budget.reserve(account, &FREE, 2, 256).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoCapacity);
        for named in ["400 MiB", "up to 1600 MiB", "1072 MiB are promised", "608 MiB were asked for"] {
            assert!(refused.message.contains(named), "{named}: {refused}");
        }
        assert!(budget.reserve_parked(1024).is_none());
        budget.reserve(account, &FREE, 1, 480).unwrap();
    }

    #[test]
    fn a_quota_counts_the_memory_of_all_guests_whether_they_use_it_or_not() {
        let budget = Arc::new(Budget::new(100, 100_000, 100_000, 48));
        let limits = Limits { max_vms: None, max_memory_mb: Some(2048) };
        let account = AccountId::generate();
        let _held = budget.reserve(account, &limits, 1, 1024).unwrap();
        let refused = budget.reserve(account, &limits, 1, 1025).unwrap_err();
        assert_eq!(refused.code, ErrorCode::QuotaExceeded);
        budget.reserve(account, &limits, 1, 1024).unwrap();
    }

    #[test]
    fn parked_vms_give_way_to_boots() {
        let budget = Arc::new(Budget::new(3, 10_000, 10_000, 48));
        let account = AccountId::generate();
        let _one = budget.reserve(account, &FREE, 1, 128).unwrap();
        let spaces = [budget.reserve_parked(128).unwrap(), budget.reserve_parked(128).unwrap()];
        assert!(budget.reserve_parked(128).is_none());
        assert!(!budget.is_overcommitted());
        assert_eq!(budget.capacity().memory_used_mb, 176, "nobody uses what is parked");
        let _two = budget.reserve(account, &FREE, 2, 128).unwrap();
        assert!(budget.is_overcommitted());
        drop(spaces);
        assert!(!budget.is_overcommitted());
    }

    #[test]
    fn a_boot_leaves_the_machine_its_reserve_and_the_pool_some_more() {
        let budget = Arc::new(Budget::new(100, 10_000, 40_000, 128));
        let observe = |available_mb: u64| {
            let machine = MachineMemory {
                available_bytes: available_mb << 20,
                total_bytes: 10_000 << 20,
                templates_bytes: 40 << 20,
                under_pressure: false,
            };
            budget.observe(MemorySample { machine, held_bytes: 60 << 20 });
        };
        let account = AccountId::generate();
        // What a boot takes is not what it is promised.
        observe(1128);
        assert!(!budget.lacks_memory(2) && budget.lacks_memory(3));
        let held = budget.reserve(account, &FREE, 2, 1024).unwrap();
        assert!(budget.reserve_parked(1024).is_none());
        let refused = budget.reserve(account, &FREE, 3, 1024).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoCapacity);
        for named in [
            "1128 MiB of memory are available",
            "1000 MiB stay reserved",
            "10000 MiB for VMs",
            "100 MiB are held",
            "2304 MiB promised",
            "3 VMs with 3456 MiB",
        ] {
            assert!(refused.message.contains(named), "{named}: {refused}");
        }
        let capacity = budget.capacity();
        assert_eq!((capacity.memory_held_mb, capacity.memory_available_mb), (100, Some(1128)));
        drop(held);
        observe(1564);
        budget.reserve_parked(1024).unwrap();
    }

    #[test]
    fn a_quota_names_both_numbers() {
        let budget = Arc::new(Budget::new(100, 100_000, 100_000, 48));
        let account = AccountId::generate();
        let limits = Limits { max_vms: Some(4), max_memory_mb: Some(400) };
        let _held = budget.reserve(account, &limits, 2, 128).unwrap();
        let refused = budget.reserve(account, &limits, 3, 1).unwrap_err();
        assert_eq!(refused.code, ErrorCode::QuotaExceeded);
        assert!(
            refused.message.contains('3') && refused.message.contains("2 of this account's 4"),
            "{refused}"
        );
        let refused = budget.reserve(account, &limits, 2, 128).unwrap_err();
        assert!(refused.message.contains("256 MiB") && refused.message.contains("144"), "{refused}");
    }
}
