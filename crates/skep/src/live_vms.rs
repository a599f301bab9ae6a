//! All VMs of the account that have not ended.

use std::collections::BTreeMap;

use skep_api::{
    VmId,
    swarm::{SwarmStatus, Vm},
};
use skep_client::Client;

/// VMs of a page, the most that the API allows.
const PAGE: u32 = 1_000;

/// All VMs of the account, oldest first. The status has their usage, but neither VMs on disk nor those beyond its limit: if it
/// leaves some out, the list of VMs is read.
pub(crate) async fn all(client: &Client, status: &SwarmStatus) -> anyhow::Result<Vec<Vm>> {
    if is_complete(status) {
        return Ok(status.vms.clone());
    }
    let mut listed = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = client.vms(PAGE, cursor.as_deref()).await?.value;
        listed.extend(page.vms);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(with_usage(listed, status));
        }
    }
}

/// Whether the status has all VMs of the account.
pub(crate) fn is_complete(status: &SwarmStatus) -> bool {
    usize::try_from(status.count).is_ok_and(|count| count <= status.vms.len())
}

/// The listed VMs, oldest first, with their usage from the status.
fn with_usage(listed: Vec<Vm>, status: &SwarmStatus) -> Vec<Vm> {
    let usage: BTreeMap<VmId, _> = status.vms.iter().map(|vm| (vm.id, vm.usage)).collect();
    // By id: ids are ordered by time, and a VM that ends while the pages are read can be on two of them.
    let listed: BTreeMap<VmId, Vm> = listed.into_iter().map(|vm| (vm.id, vm)).collect();
    listed.into_values().map(|vm| Vm { usage: usage.get(&vm.id).copied().flatten(), ..vm }).collect()
}
