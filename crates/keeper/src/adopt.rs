//! Adoption of VMs that outlived an earlier keeper.
//!
//! A record names a VM and its process. A VM is adopted only if the machine matches the record: a process with that PID
//! *and* start time, in the VM's own cgroup, with its port and its sockets. Otherwise its resources are removed, the
//! cgroup with its processes first. No process is killed by its PID alone.

use std::{collections::HashMap, fs, path::Path};

use skep_api::{VmId, egress::EgressPolicy};
use skep_jail::{CgroupTree, Jailed, UidPool};
use skep_network::{KnownAddress, Network, Port};

use crate::{
    DataDir, Error, SwarmConfig, cleanup,
    data_dir::{EGRESS_SOCKET, remove_dir_all},
    egress,
    process_id::boot_id,
    records::{Record, Records, VmmRecord},
    sockets::SocketDir,
    vmm::VmResources,
};

/// A VM of an earlier keeper whose process still runs.
#[derive(Debug)]
pub(crate) struct RunningVm {
    record: Record,
    vmm: VmmRecord,
    jailed: Jailed,
}

/// Whether VMs of an earlier keeper of this data directory run, which the next one takes over. Blocks.
///
/// # Errors
/// The data directory or the boot id of the machine cannot be read.
pub fn has_running_vms(data_dir: &Path) -> Result<bool, Error> {
    Ok(data_dir.is_dir() && !running_vms(&DataDir::find(data_dir)?)?.is_empty())
}

/// The committed VMs whose recorded process still runs. `adopt` checks the rest.
///
/// # Errors
/// The records or the boot id of the machine cannot be read.
pub(crate) fn running_vms(data_dir: &DataDir) -> Result<Vec<RunningVm>, Error> {
    let boot_id = boot_id()?;
    let of_this_boot = |record: &Record| record.committed && record.boot_id == boot_id;
    let recorded = Records::of(data_dir).read()?.into_iter().filter(of_this_boot);
    Ok(recorded
        .filter_map(|record| {
            let vmm = record.vmm.clone()?;
            Some(RunningVm { jailed: vmm.process.open()?, vmm, record })
        })
        .collect())
}

/// Cgroups and network of a data directory, with the VMs that run in them.
pub(crate) struct SwarmResources {
    pub(crate) tree: CgroupTree,
    pub(crate) network: Network,
    pub(crate) living: HashMap<VmId, VmResources>,
}

/// Takes over network, cgroups and VMs, and removes everything in them that belongs to no adopted VM.
///
/// # Errors
/// The network or the cgroups cannot be taken over.
pub(crate) async fn adopt(
    data_dir: &DataDir,
    swarm: &SwarmConfig,
    uids: &mut UidPool,
    running_vms: Vec<RunningVm>,
) -> Result<SwarmResources, Error> {
    let tree = CgroupTree::create(&data_dir.name())?;
    // A service manager may have run the earlier keeper in another cgroup.
    cleanup::remove_other_trees(data_dir, &tree)?;
    cleanup::record_cgroups(data_dir, &tree)?;
    let known = |running_vm: &RunningVm| KnownAddress {
        ip: running_vm.record.ip,
        admitted: running_vm.record.reaches_api,
        egress: swarm.egress.is_some() && running_vm.record.egress().policy != EgressPolicy::None,
    };
    let addresses = running_vms.iter().map(known).collect();
    let (network, mut ports) = Network::adopt(&data_dir.name(), swarm.subnet, addresses).await?;
    let mut living = HashMap::new();
    for running_vm in running_vms {
        let (vm, pid) = (running_vm.record.vm, running_vm.jailed.pid);
        match adopt_vm(data_dir, &tree, uids, &mut ports, running_vm) {
            Ok(belongings) => {
                tracing::info!(%vm, pid, "VM {vm} is taken over");
                living.insert(vm, belongings);
            }
            Err(reason) => tracing::warn!(%vm, pid, "VM {vm} cannot be taken over and is ended: {reason}"),
        }
    }
    let is_adopted = |name: &str| name.parse().is_ok_and(|vm: VmId| living.contains_key(&vm));
    // Processes first: the resources that they hold cannot be removed before.
    // The egress process is adopted, or ended, when it is started.
    tree.remove_all_but(|name| is_adopted(name) || (swarm.egress.is_some() && name == egress::GROUP))?;
    for port in ports {
        network.remove(port).await?;
    }
    remove_sockets(data_dir, |name| is_adopted(name) || name == EGRESS_SOCKET)?;
    Records::of(data_dir).remove_all_but(|vm| living.contains_key(&vm))?;
    Ok(SwarmResources { tree, network, living })
}

/// Checks a running VM against the machine and collects its resources. `Err`: the reason why it cannot be
/// adopted.
fn adopt_vm(
    data_dir: &DataDir,
    tree: &CgroupTree,
    uids: &mut UidPool,
    ports: &mut Vec<Port>,
    running_vm: RunningVm,
) -> Result<VmResources, &'static str> {
    let RunningVm { record, vmm, jailed } = running_vm;
    let group = tree.find(&record.vm.to_string()).ok_or("it has no control group")?;
    if !group.contains(jailed.pid) {
        return Err("the recorded process is not in its control group");
    }
    if owner(jailed.pid) != Some(record.uid) {
        return Err("the recorded process belongs to another user");
    }
    let path = data_dir.sockets().join(record.vm.to_string());
    let sockets = SocketDir::find(path).ok_or("it has no sockets")?;
    let at = ports.iter().position(|port| port.ip == record.ip).ok_or("it has no tap at its address")?;
    if !uids.adopt(record.uid) {
        return Err("its user id is already in use");
    }
    Ok(VmResources::adopted(record, &vmm, jailed, group, sockets, ports.swap_remove(at)))
}

/// The process's real user id. Not the owner of /proc/PID, which is root for a process that is not dumpable.
fn owner(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

fn remove_sockets(data_dir: &DataDir, kept: impl Fn(&str) -> bool) -> Result<(), Error> {
    let folder = data_dir.sockets();
    let entries = fs::read_dir(&folder).map_err(Error::io(folder.display().to_string()))?;
    for entry in entries.flatten().filter(|entry| !entry.file_name().to_str().is_some_and(&kept)) {
        remove_dir_all(&entry.path())?;
    }
    Ok(())
}
