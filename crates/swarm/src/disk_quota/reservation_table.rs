//! The disk space that requests in progress are going to occupy.
//!
//! A request reserves its space before it reads what the account occupies, and releases it when what it made is counted
//! there. It counts the reservations that came before its own. So of two requests that do not fit together, the later
//! one is refused, and nothing is locked while the store and the keeper are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, VmId};

/// The reservations of all accounts, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct ReservationTable(Mutex<OrderedReservations>);

#[derive(Debug, Default)]
struct OrderedReservations {
    next: u64,
    reservations: BTreeMap<u64, ReservedSpace>,
}

#[derive(Debug, Clone)]
pub(super) struct ReservedSpace {
    pub(super) account: AccountId,
    pub(super) bytes: u64,
    /// VMs whose whole space is in `bytes`, so that what they occupy now does not count in addition.
    pub(super) vms: Vec<VmId>,
    /// Whether that VM is being paused to disk.
    pub(super) is_pause: bool,
}

/// The reservations of an account that count for one of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct OtherReservations {
    pub(super) bytes: u64,
    pub(super) pauses: u32,
    pub(super) vms: BTreeSet<VmId>,
}

impl ReservationTable {
    /// Adds a reservation. Returns its number, and the reservations before it.
    pub(super) fn add(&self, space: ReservedSpace) -> (u64, OtherReservations) {
        let mut ordered = self.lock();
        let others = ordered.others(space.account);
        (ordered.append(space), others)
    }

    /// Replaces a reservation that takes no more space than before. It keeps its place.
    pub(super) fn shrink(&self, number: u64, space: ReservedSpace) {
        self.lock().reservations.insert(number, space);
    }

    /// Replaces a reservation by a larger one, which is the last one then. Returns its new number, and all others.
    pub(super) fn enlarge(&self, number: u64, space: ReservedSpace) -> (u64, OtherReservations) {
        let mut ordered = self.lock();
        ordered.reservations.remove(&number);
        let others = ordered.others(space.account);
        (ordered.append(space), others)
    }

    /// All reservations of an account.
    pub(super) fn of(&self, account: AccountId) -> OtherReservations {
        self.lock().others(account)
    }

    pub(super) fn release(&self, number: u64) {
        self.lock().reservations.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, OrderedReservations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OrderedReservations {
    fn append(&mut self, space: ReservedSpace) -> u64 {
        let number = self.next;
        self.next += 1;
        self.reservations.insert(number, space);
        number
    }

    fn others(&self, account: AccountId) -> OtherReservations {
        let own = self.reservations.values().filter(|space| space.account == account);
        own.fold(OtherReservations::default(), |mut others, space| {
            others.bytes = others.bytes.saturating_add(space.bytes);
            others.pauses += u32::from(space.is_pause);
            others.vms.extend(&space.vms);
            others
        })
    }
}
