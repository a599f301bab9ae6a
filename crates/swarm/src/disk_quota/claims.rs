//! The disk space that requests in progress are going to occupy.
//!
//! A request claims its space before it reads what the account occupies, and releases it when what it made is counted there. It
//! counts the claims that came before its own. So of two requests that do not fit together, the later one is refused, and
//! nothing is locked while the store and the keeper are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use skep_api::{AccountId, VmId};

/// The claims of all accounts, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<Ordered>);

#[derive(Debug, Default)]
struct Ordered {
    next: u64,
    claims: BTreeMap<u64, Claim>,
}

#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) account: AccountId,
    pub(super) bytes: u64,
    /// VMs whose whole space is in `bytes`, so that what they occupy now does not count in addition.
    pub(super) vms: Vec<VmId>,
    /// Whether that VM is being paused to disk.
    pub(super) is_pause: bool,
}

/// The claims of an account that count for one of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) bytes: u64,
    pub(super) pauses: u32,
    pub(super) vms: BTreeSet<VmId>,
}

impl Claims {
    /// Adds a claim. Returns its number, and the claims before it.
    pub(super) fn add(&self, claim: Claim) -> (u64, Others) {
        let mut ordered = self.lock();
        let others = ordered.others(claim.account);
        (ordered.append(claim), others)
    }

    /// Replaces a claim that takes no more space than before. It keeps its place.
    pub(super) fn shrink(&self, number: u64, claim: Claim) {
        self.lock().claims.insert(number, claim);
    }

    /// Replaces a claim by a larger one, which is the last one then. Returns its new number, and all others.
    pub(super) fn enlarge(&self, number: u64, claim: Claim) -> (u64, Others) {
        let mut ordered = self.lock();
        ordered.claims.remove(&number);
        let others = ordered.others(claim.account);
        (ordered.append(claim), others)
    }

    pub(super) fn release(&self, number: u64) {
        self.lock().claims.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, Ordered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ordered {
    fn append(&mut self, claim: Claim) -> u64 {
        let number = self.next;
        self.next += 1;
        self.claims.insert(number, claim);
        number
    }

    fn others(&self, account: AccountId) -> Others {
        let own = self.claims.values().filter(|claim| claim.account == account);
        own.fold(Others::default(), |mut others, claim| {
            others.bytes = others.bytes.saturating_add(claim.bytes);
            others.pauses += u32::from(claim.is_pause);
            others.vms.extend(&claim.vms);
            others
        })
    }
}
