//! What one VM uses, and the state and the metrics of the whole swarm.

use futures_util::future::join_all;
use skep_api::{
    AccountId, VmId,
    swarm::VmMetrics,
    system::{DamagedTemplate, SwarmState},
};

use super::Swarm;
use crate::{Error, SwarmMetrics, history::MetricsHistory, metrics, usage};

impl Swarm {
    /// What a VM uses now.
    ///
    /// # Errors
    /// Unknown VM, or the keeper is gone.
    pub async fn vm_metrics(&self, account: &AccountId, vm: VmId) -> Result<VmMetrics, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        handle.require_vmm()?;
        let promised_mb = self.0.budget.promise_of_one_mb(handle.facts.memory_mb);
        usage::read(&self.0.surroundings.keeper, &handle, promised_mb).await
    }

    /// Samples of what the VMs use.
    pub fn history(&self) -> MetricsHistory {
        self.0.history.clone()
    }

    /// The state of the swarm over all accounts, with these damaged templates, which the swarm keeps no record of.
    pub fn state(&self, damaged_templates: Vec<DamagedTemplate>) -> SwarmState {
        SwarmState {
            engine: self.0.engine.clone(),
            capacity: self.0.budget.capacity(),
            pool: self.0.booter.pool.state(None),
            vms: u32::try_from(self.registry().states().len()).unwrap_or(u32::MAX),
            memory_held_mb: self.0.usage.held_bytes() >> 20,
            damaged_templates,
        }
    }

    /// Metrics of the whole swarm, over all accounts.
    pub async fn metrics(&self) -> SwarmMetrics {
        join_all(self.registry().all().iter().map(|vm| vm.disk.read())).await;
        let disk = self.0.surroundings.disk_totals.read();
        SwarmMetrics {
            vms: self.registry().states().into_iter().map(|state| (state, 1)).collect(),
            pool: self.0.booter.pool.state(None),
            capacity: self.0.budget.capacity(),
            held_bytes: self.0.usage.held_bytes(),
            disk,
            egress: metrics::egress_totals(&self.0.surroundings.keeper).await,
            vmms: metrics::count_vmms(&self.0.surroundings.keeper).await,
        }
    }
}
