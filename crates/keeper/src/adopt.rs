//! VMs that outlived the keeper before this one.
//!
//! A record names a VM and its process. It is believed only as far as the machine bears it out: a process of that number
//! *and* start, in this VM's own control group, with its port and its sockets. Whatever is not borne out is cleared away
//! by what is known to be the VM's, its control group first, and never by the number alone.

use std::{collections::HashMap, fs};

use skep_api::VmId;
use skep_jail::{Jailed, Tree, UidPool};
use skep_network::{Known, Network, Port};

use crate::{
    DataDir, Error, SwarmOrder, clean,
    data_dir::remove,
    process::boot_id,
    records::{Record, Records, VmmRecord},
    sockets::SocketDir,
    vmm::Belongings,
};

/// A VM whose process still runs.
#[derive(Debug)]
pub(crate) struct Survivor {
    record: Record,
    vmm: VmmRecord,
    jailed: Jailed,
}

/// The VMs on record that are somebody's and still run, as far as a record alone can tell.
///
/// # Errors
/// The system does not tell which run of the machine this is.
pub(crate) fn survivors(data_dir: &DataDir) -> Result<Vec<Survivor>, Error> {
    let boot_id = boot_id()?;
    let of_this_boot = |record: &Record| record.committed && record.boot_id == boot_id;
    let recorded = Records::of(data_dir).read().into_iter().filter(of_this_boot);
    Ok(recorded
        .filter_map(|record| {
            let vmm = record.vmm.clone()?;
            Some(Survivor { jailed: vmm.process.open()?, vmm, record })
        })
        .collect())
}

/// Where VMs live, with those that live there already.
pub(crate) struct Ground {
    pub(crate) tree: Tree,
    pub(crate) network: Network,
    pub(crate) living: HashMap<VmId, Belongings>,
}

/// Takes network, control groups and VMs over, and clears away whatever else is there.
///
/// # Errors
/// They are not as they were left.
pub(crate) async fn adopt(
    data_dir: &DataDir,
    swarm: &SwarmOrder,
    uids: &mut UidPool,
    survivors: Vec<Survivor>,
) -> Result<Ground, Error> {
    let tree = Tree::create(&data_dir.name())?;
    // An earlier keeper may have been put elsewhere by a service manager.
    clean::other_trees(data_dir, &tree)?;
    clean::record_cgroups(data_dir, &tree)?;
    let known = |survivor: &Survivor| Known { ip: survivor.record.ip, admitted: survivor.record.reaches_api };
    let addresses = survivors.iter().map(known).collect();
    let (network, mut ports) = Network::adopt(&data_dir.name(), swarm.subnet, addresses).await?;
    let mut living = HashMap::new();
    for survivor in survivors {
        let (vm, pid) = (survivor.record.vm, survivor.jailed.pid);
        match take_in(data_dir, &tree, uids, &mut ports, survivor) {
            Ok(belongings) => {
                tracing::info!(%vm, pid, "VM {vm} is taken over");
                living.insert(vm, belongings);
            }
            Err(reason) => tracing::warn!(%vm, pid, "VM {vm} cannot be taken over and is ended: {reason}"),
        }
    }
    let lives = |name: &str| name.parse().is_ok_and(|vm: VmId| living.contains_key(&vm));
    // First the processes: what they hold cannot go before them.
    tree.remove_all_but(lives)?;
    for port in ports {
        network.remove(port).await?;
    }
    remove_sockets(data_dir, lives)?;
    Records::of(data_dir).remove_all_but(|vm| living.contains_key(&vm))?;
    Ok(Ground { tree, network, living })
}

/// All that a VM has, or what it lacks.
fn take_in(
    data_dir: &DataDir,
    tree: &Tree,
    uids: &mut UidPool,
    ports: &mut Vec<Port>,
    survivor: Survivor,
) -> Result<Belongings, &'static str> {
    let Survivor { record, vmm, jailed } = survivor;
    let group = tree.find(&record.vm.to_string()).ok_or("it has no control group")?;
    if !group.holds(jailed.pid) {
        return Err("the process on record is not in its control group");
    }
    if owner(jailed.pid) != Some(record.uid) {
        return Err("the process on record is another user's");
    }
    let path = data_dir.sockets().join(record.vm.to_string());
    let sockets = SocketDir::find(path).ok_or("it has no sockets")?;
    let at = ports.iter().position(|port| port.ip == record.ip).ok_or("it has no tap at its address")?;
    if !uids.adopt(record.uid) {
        return Err("its user id is not free for it");
    }
    Ok(Belongings::adopted(record, &vmm, jailed, group, sockets, ports.swap_remove(at)))
}

/// The process's real user id. Not the owner of its folder, which is root where it cannot be dumped.
fn owner(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

fn remove_sockets(data_dir: &DataDir, kept: impl Fn(&str) -> bool) -> Result<(), Error> {
    let folder = data_dir.sockets();
    let entries = fs::read_dir(&folder).map_err(Error::io(folder.display().to_string()))?;
    for entry in entries.flatten().filter(|entry| !entry.file_name().to_str().is_some_and(&kept)) {
        remove(&entry.path())?;
    }
    Ok(())
}
