//! The status of the swarm for one account.

use skep_api::{
    AccountId,
    swarm::{MAX_LISTED_VMS, PausedTo, SwarmStatus, Vm},
};

use super::Swarm;
use crate::Error;

impl Swarm {
    /// The account's VMs that have a VMM, [`MAX_LISTED_VMS`] at most, the number of all of its VMs, and the capacity of the
    /// machine.
    ///
    /// # Errors
    /// The keeper or the store is not available.
    pub async fn status(&self, account: &AccountId) -> Result<SwarmStatus, Error> {
        let all = self.registry().of(*account);
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let all = all.into_iter().map(|vm| (vm.paused_to(), vm)).collect();
        let vms: Vec<Vm> = listed(all).iter().map(|vm| self.0.usage.add_to(vm.record())).collect();
        Ok(SwarmStatus {
            vms,
            count,
            disk_used_mb: self.0.surroundings.disk_quotas.used_bytes(*account).await?.div_ceil(1 << 20),
            pool: self.0.booter.pool.state(Some(*account)),
            capacity: self.0.budget.capacity(),
            engine: Some(self.0.engine.clone()),
        })
    }
}

/// Selects the VMs that the status lists: those that are not on disk, in the given order. If they are more than the limit,
/// running ones come first. Each VM is given with the place of its memory, if it is paused.
fn listed<T>(all: Vec<(Option<PausedTo>, T)>) -> Vec<T> {
    let mut listed: Vec<_> = all.into_iter().filter(|(to, _)| *to != Some(PausedTo::Disk)).collect();
    if listed.len() > MAX_LISTED_VMS {
        // Stable, so that the order is kept otherwise.
        listed.sort_by_key(|(to, _)| to.is_some());
        listed.truncate(MAX_LISTED_VMS);
    }
    listed.into_iter().map(|(_, vm)| vm).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// VMs with these numbers, of which some are paused.
    fn vms(
        numbers: Range<usize>,
        paused: impl Fn(usize) -> Option<PausedTo>,
    ) -> Vec<(Option<PausedTo>, usize)> {
        numbers.map(|number| (paused(number), number)).collect()
    }

    #[test]
    fn vms_on_disk_are_not_listed_and_the_others_keep_their_order() {
        let places = [Some(PausedTo::Memory), Some(PausedTo::Disk), None, Some(PausedTo::Disk), None];
        assert_eq!(listed(vms(0..5, |number| places[number])), [0, 2, 4]);
        // Those on disk do not count for the limit.
        let on_disk = vms(0..2 * MAX_LISTED_VMS, |number| (number >= 2).then_some(PausedTo::Disk));
        assert_eq!(listed(on_disk), [0, 1]);
        let full = listed(vms(0..MAX_LISTED_VMS, |number| (number == 0).then_some(PausedTo::Memory)));
        assert!(full.into_iter().eq(0..MAX_LISTED_VMS));
    }

    #[test]
    fn running_vms_are_listed_first_if_not_all_fit() {
        // The first half is paused, and ten of it fit.
        let running = MAX_LISTED_VMS - 10;
        let all = vms(0..2 * running, |number| (number < running).then_some(PausedTo::Memory));
        let found = listed(all);
        assert!(found.into_iter().eq((running..2 * running).chain(0..10)));
        // Of too many running ones, the first are listed.
        let more = MAX_LISTED_VMS + 1;
        let found = listed(vms(0..more, |number| (number == 0).then_some(PausedTo::Memory)));
        assert!(found.into_iter().eq(1..more));
    }
}
