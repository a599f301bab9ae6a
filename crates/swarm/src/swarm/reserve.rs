//! The reservation of capacity for a boot.

use skep_api::{AccountId, ErrorCode, keys::Limits};

use super::Swarm;
use crate::{
    Error,
    budget::{Asked, Reservation},
    idle,
    template::BootTemplate,
};

impl Swarm {
    /// Reserves capacity for a boot. Where the machine has none left, VMs that are paused for being idle go to disk, one after
    /// the other, until it suffices.
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
            if !(lacks_capacity && idle::move_one_to_disk(self.registry()).await) {
                return reserved;
            }
        }
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
        let mut asked = Asked { vms, guest_mb: template.memory_mb, parked: 0 };
        budget.check(account, limits, &asked)?;
        loop {
            asked.parked = if template.is_pooled() { pool.ready(template.id).min(vms) } else { 0 };
            if !budget.lacks_memory(asked.restores()) {
                break;
            }
            // The sample may be a second old.
            self.0.usage.take(&pool.restorer.keeper, budget).await?;
            if !budget.lacks_memory(asked.restores()) {
                break;
            }
            // A parked VM holds about as much as a new one takes.
            let restores_without_pool = asked.restores().saturating_sub(pool.evictable(template.id, vms));
            if budget.lacks_memory(restores_without_pool) || !pool.evict_one(template.id, vms).await {
                break;
            }
        }
        Ok(budget.reserve(account, limits, &asked)?)
    }
}
