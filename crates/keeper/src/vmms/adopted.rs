//! What a keeper takes over from the one before.

use std::collections::HashMap;

use skep_jail::{CgroupTree, UidPool};
use skep_keeper_protocol::Usage;
use skep_network::Network;

use crate::{
    DataDir, Error, SwarmConfig,
    adopt::{self, RunningVm, SwarmResources},
    capacity::InUse,
    cleanup,
    data_dir::create_dir_all,
};

/// Adopts the running VMs with their network and cgroups. If that fails, ends them and creates both anew.
pub(super) async fn adopt_or_create(
    data_dir: &DataDir,
    swarm: &SwarmConfig,
    uids: &mut UidPool,
    running_vms: Vec<RunningVm>,
) -> Result<SwarmResources, Error> {
    if !running_vms.is_empty() {
        let unused = uids.clone();
        match adopt::adopt(data_dir, swarm, uids, running_vms).await {
            Ok(resources) => return Ok(resources),
            Err(error) => {
                tracing::warn!(%error, "the VMs of an earlier keeper cannot be taken over and end: {error}");
                cleanup::remove_leftovers(data_dir)?;
                create_dir_all(&data_dir.sockets(), 0o700)?;
                *uids = unused;
            }
        }
    }
    let tree = CgroupTree::create(&data_dir.name())?;
    if let Err(error) = cleanup::record_cgroups(data_dir, &tree) {
        // A later cleanup finds only recorded cgroups.
        tree.remove()?;
        return Err(error);
    }
    let network = Network::create(&data_dir.name(), swarm.subnet).await?;
    Ok(SwarmResources { tree, network, living: HashMap::new() })
}

/// What adopted VMs use. Pages of files are not a part of it, because they count as available already.
pub(super) fn in_use(usages: impl Iterator<Item = Usage>) -> InUse {
    InUse { held_bytes: usages.map(|usage| usage.load.held_bytes).sum() }
}

#[cfg(test)]
mod tests {
    use skep_keeper_protocol::Load;

    use super::*;

    #[test]
    fn an_adopted_vm_counts_with_what_its_end_would_free() {
        let usage = |held_bytes, memory_bytes| Usage {
            load: Load { held_bytes, cpu_us: 0, disk_bytes: 0 },
            memory_bytes,
            ..Usage::default()
        };
        let used = in_use([usage(60 << 20, 400 << 20), usage(70 << 20, 70 << 20)].into_iter());
        assert_eq!(used.held_bytes, 130 << 20);
    }
}
