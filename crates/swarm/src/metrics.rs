//! Metrics of the whole swarm, and the observer of its events.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use skep_api::swarm::{BootReceipt, Capacity, EndReason, PoolState, VmState};
use skep_engine::DiskTraffic;
use skep_keeper_protocol::{EgressTotals, ServerEnd};
use tokio::time::timeout;

/// Time limit of the keeper's answer.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(2);

/// Gets notified of boots and ends of VMs. Its methods must not block.
#[warn(missing_docs)]
pub trait Observer: fmt::Debug + Send + Sync {
    /// A VM was booted and recorded.
    fn booted(&self, receipt: &BootReceipt);
    /// A recorded VM ended.
    fn ended(&self, reason: EndReason);
}

/// Ignores all events.
impl Observer for () {
    fn booted(&self, _: &BootReceipt) {}
    fn ended(&self, _: EndReason) {}
}

pub(crate) type SharedObserver = Arc<dyn Observer>;

/// Metrics of the whole swarm, over all accounts.
#[derive(Debug, Clone)]
pub struct SwarmMetrics {
    /// Running VMs by state.
    pub vms: Vec<(VmState, usize)>,
    /// Parked VMs by template.
    pub pool: BTreeMap<String, PoolState>,
    pub capacity: Capacity,
    /// Memory that the ends of all VMs would free, in bytes.
    pub held_bytes: u64,
    /// What the guests of all VMs of accounts did with their disks since the start of this server, with VMs that ended.
    pub disk: DiskTraffic,
    /// The connections of VMs to hosts outside. `None` if the keeper did not answer in time.
    pub egress: Option<EgressTotals>,
    /// `None` if the keeper did not answer in time.
    pub vmms: Option<VmmCounts>,
}

/// For a server without a swarm.
impl Default for SwarmMetrics {
    fn default() -> Self {
        Self {
            vms: Vec::new(),
            pool: BTreeMap::new(),
            capacity: Capacity::default(),
            held_bytes: 0,
            disk: DiskTraffic::default(),
            egress: Some(EgressTotals::default()),
            vmms: Some(VmmCounts { committed: 0, uncommitted: 0 }),
        }
    }
}

/// Numbers of VMMs that the keeper holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmmCounts {
    /// Those that outlive this server.
    pub committed: usize,
    /// Those that are parked or being restored.
    pub uncommitted: usize,
}

pub(crate) async fn egress_totals(keeper: &ServerEnd) -> Option<EgressTotals> {
    timeout(KEEPER_TIMEOUT, keeper.egress_totals()).await.ok()?.ok()
}

pub(crate) async fn count_vmms(keeper: &ServerEnd) -> Option<VmmCounts> {
    let held = timeout(KEEPER_TIMEOUT, keeper.list()).await.ok()?.ok()?;
    let committed = held.iter().filter(|vm| vm.committed).count();
    Some(VmmCounts { committed, uncommitted: held.len() - committed })
}
