//! The reservation of capacity for a boot.

use std::time::Duration;

use skep_api::{AccountId, ErrorCode, keys::Limits};
use tokio::time::timeout;

use super::Swarm;
use crate::{
    Error,
    budget::{FreeableCapacity, RequestedCapacity, Reservation},
    idle,
    template::BootTemplate,
};

/// How long a boot waits until one VM is on disk. Less than the time that a guest may take to stop its programs.
const MOVE_TIMEOUT: Duration = Duration::from_secs(10);

impl Swarm {
    /// Reserves capacity for a boot. Where the machine has none left, VMs that are paused for being idle go to disk, one after
    /// the other, until it suffices or one takes too long: those of the account first. None moves if all of them would not
    /// make enough room.
    pub(super) async fn reserve(
        &self,
        account: AccountId,
        limits: &Limits,
        template: &BootTemplate,
        vms: u32,
    ) -> Result<Reservation, Error> {
        loop {
            let reserved = self.reserve_now(account, limits, template, vms).await;
            let lacks_capacity = matches!(&reserved, Err(error) if error.code() == ErrorCode::NoCapacity);
            let moves_suffice = lacks_capacity && self.moves_suffice(template, vms).await?;
            if !(moves_suffice && self.move_one_to_disk(account).await) {
                return reserved;
            }
        }
    }

    /// Whether a boot would fit if all idle VMs were on disk, and parked VMs that it does not take had ended.
    async fn moves_suffice(&self, template: &BootTemplate, vms: u32) -> Result<bool, Error> {
        let (budget, pool) = (&self.0.budget, &self.0.booter.pool);
        // The last sample may be a second old.
        self.0.usage.take(&pool.restorer.keeper, budget).await?;
        let idle = idle::in_memory(&self.0.surroundings.registry);
        let held = idle.iter().filter_map(|vm| self.0.usage.of(vm.facts.id)).map(|load| load.held_bytes);
        let freeable = FreeableCapacity {
            vms: u32::try_from(idle.len()).unwrap_or(u32::MAX),
            promised_mb: idle.iter().map(|vm| budget.promise_of_one_mb(vm.facts.memory_mb)).sum(),
            held_bytes: held.sum(),
        };
        // A parked VM holds about as much as a new one takes.
        let parked = self.parked_for(template, vms) + pool.evictable(template.id, vms);
        let requested = RequestedCapacity { vms, guest_mb: template.memory_mb, parked };
        Ok(budget.suffices_with(&freeable, &requested))
    }

    /// The number of parked VMs that a boot takes.
    fn parked_for(&self, template: &BootTemplate, vms: u32) -> u32 {
        if template.is_pooled() { self.0.booter.pool.ready(template.id).min(vms) } else { 0 }
    }

    /// Moves an idle VM to disk, one of this account if it has any. Returns whether that succeeded in time; a move that takes
    /// longer continues.
    async fn move_one_to_disk(&self, account: AccountId) -> bool {
        let moved = idle::spawn_move_to_disk(&self.0.surroundings.registry, Some(account));
        matches!(timeout(MOVE_TIMEOUT, moved).await, Ok(Ok(true)))
    }

    /// Reserves capacity that the machine has now. If memory is low, parked VMs that the boot does not take make room, one
    /// after the other, until it suffices. None ends for a boot that is refused anyway.
    async fn reserve_now(
        &self,
        account: AccountId,
        limits: &Limits,
        template: &BootTemplate,
        vms: u32,
    ) -> Result<Reservation, Error> {
        let (budget, pool) = (&self.0.budget, &self.0.booter.pool);
        let mut requested = RequestedCapacity { vms, guest_mb: template.memory_mb, parked: 0 };
        budget.check(account, limits, &requested)?;
        loop {
            requested.parked = self.parked_for(template, vms);
            if !budget.lacks_memory(requested.restores()) {
                break;
            }
            // The last sample may be a second old.
            self.0.usage.take(&pool.restorer.keeper, budget).await?;
            if !budget.lacks_memory(requested.restores()) {
                break;
            }
            // A parked VM holds about as much as a new one takes.
            let restores_without_pool = requested.restores().saturating_sub(pool.evictable(template.id, vms));
            if budget.lacks_memory(restores_without_pool) || !pool.evict_one(template.id, vms).await {
                break;
            }
        }
        Ok(budget.reserve(account, limits, &requested)?)
    }
}
