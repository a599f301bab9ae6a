//! What is told of the whole swarm to whoever watches the machine, and who is told of what happens in it.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use skep_api::swarm::{BootReceipt, Capacity, EndReason, PoolState, VmState};
use skep_keeper_protocol::ServerEnd;
use tokio::time::timeout;

/// How long the keeper may take to say what it holds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Is told of VMs as they come and go. It must not wait.
#[warn(missing_docs)]
pub trait Observer: fmt::Debug + Send + Sync {
    /// A VM was booted, and its boot is on record.
    fn booted(&self, receipt: &BootReceipt);
    /// A VM that belonged to somebody ended.
    fn ended(&self, reason: EndReason);
}

/// Whoever does not want to know.
impl Observer for () {
    fn booted(&self, _: &BootReceipt) {}
    fn ended(&self, _: EndReason) {}
}

/// Who is told, shared by all that happens.
pub(crate) type Watcher = Arc<dyn Observer>;

/// The whole swarm in figures, without regard to accounts.
#[derive(Debug, Clone)]
pub struct Figures {
    /// VMs that live, by state.
    pub vms: Vec<(VmState, usize)>,
    /// VMs kept ready, by template.
    pub pool: BTreeMap<String, PoolState>,
    /// What the machine can hold.
    pub capacity: Capacity,
    /// VMMs in their jails; `None` where the keeper did not say.
    pub vmms: Option<Vmms>,
}

/// A swarm that is not there.
impl Default for Figures {
    fn default() -> Self {
        Self {
            vms: Vec::new(),
            pool: BTreeMap::new(),
            capacity: Capacity { max_vms: 0, memory_mb: 0, memory_used_mb: 0 },
            vmms: Some(Vmms { committed: 0, uncommitted: 0 }),
        }
    }
}

/// VMMs that the keeper holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vmms {
    /// Those that outlive this server: they are somebody's.
    pub committed: usize,
    /// Those that wait in the pool, or are being restored.
    pub uncommitted: usize,
}

/// Asks the keeper what it holds.
pub(crate) async fn vmms(keeper: &ServerEnd) -> Option<Vmms> {
    let held = timeout(PATIENCE, keeper.list()).await.ok()?.ok()?;
    let committed = held.iter().filter(|vm| vm.committed).count();
    Some(Vmms { committed, uncommitted: held.len() - committed })
}
