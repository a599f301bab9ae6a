//! A VM that is paused to disk: it has no VMM. Its memory, devices and disk are a snapshot of the keeper, and its address is
//! reserved.
//!
//! A pause stores the snapshot, then records it, then ends the VMM. A resume restores the VM, then records that, then removes
//! the snapshot. The end of a VM on disk is recorded, then its snapshot is removed. So the snapshot exists as long as the record
//! says that the VM is on disk. If the server dies during a pause, a resume or an end, the next one ends a VMM that is not on
//! record, and removes a snapshot that no record names.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use skep_api::{ErrorCode, TemplateId, VmId, egress::EgressPolicy, swarm::PausedBy};
use skep_channel::Guest;
use skep_engine::Machine;
use skep_keeper_protocol::{LaunchedVm, ServerEnd, StorePurpose, VmEgress};
use skep_store::VmBooted;
use tokio::time::sleep;

use super::{DiskBoot, Running, VmContext, VmHandle};
use crate::{
    DiskReservation, Error,
    console::ConsoleLog,
    hand_out,
    restore::{self, Environment},
};

/// Time limit of the connection to the agent of a VM that is resumed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts at the end of a VMM or at the reservation of an address, and the pause between them.
const ATTEMPTS: u32 = 5;
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) struct OnDisk {
    pub(crate) snapshot: TemplateId,
    pub(crate) by: PausedBy,
}

/// A VM that was restored from its snapshot and is not recorded yet.
pub(super) struct Resumed {
    pub(super) running: Running,
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
}

impl Running {
    /// Stores the VM in a snapshot of the keeper. Its programs stay frozen and its processors stopped then.
    ///
    /// # Errors
    /// The guest's programs cannot be frozen, the VMM or the keeper refused, the snapshot is larger than the account may have,
    /// or the VM has ended. The VM runs on then, if it has not ended.
    pub(super) async fn store(
        &self,
        context: &VmContext,
        vm: &VmHandle,
        snapshot: TemplateId,
        disk: &mut DiskReservation,
    ) -> Result<(), Error> {
        let (keeper, id) = (&context.keeper, vm.facts.id);
        let stored = async {
            self.stop_and_capture(keeper, vm, snapshot).await?;
            tracing::debug!(vm = %id, "VM {id} is copied for its pause");
            keeper.reserve_address(vm.address()?).await?;
            tracing::debug!(vm = %id, "the address of VM {id} is reserved");
            let stored = keeper.store_capture(snapshot, StorePurpose::Pause).await?;
            disk.settle(&stored).await?;
            vm.set_stored(&stored);
            Ok::<_, Error>(())
        };
        let stored = stored.await;
        if let Err(error) = keeper.drop_capture(snapshot).await {
            tracing::warn!(vm = %id, %error, "a copy of a VM is not freed before the server ends: {error}");
        }
        if let Err(error) = stored {
            self.undo_store(keeper, vm, snapshot).await;
            return Err(error);
        }
        Ok(())
    }

    /// Lets the VM run on after its pause failed, and removes what is left of it.
    pub(super) async fn undo_store(&self, keeper: &ServerEnd, vm: &VmHandle, snapshot: TemplateId) {
        let id = vm.facts.id;
        // A VM that is about to end need not run on.
        if !vm.is_end_requested()
            && let Err(error) = self.run_again(&snapshot.to_string()).await
        {
            tracing::error!(vm = %id, %error, "VM {id} was not paused to disk, and may stand still: {error}");
        }
        remove(keeper, vm, snapshot).await;
    }
}

impl OnDisk {
    /// Restores the VM into a new VMM, with the address and the policy that it had: from its snapshot, or from a guest that was
    /// booted from its disk. The keeper keeps the VM as committed.
    ///
    /// # Errors
    /// The snapshot is damaged, the machine lacks memory, or the VMM or the guest did not answer. Nothing is left behind
    /// then.
    pub(super) async fn restore(
        &self,
        context: &VmContext,
        vm: &VmHandle,
        egress: EgressPolicy,
        disk: Option<DiskBoot>,
    ) -> Result<Resumed, Error> {
        let id = vm.facts.id;
        let resumed = async {
            let source = disk.map_or(self.snapshot, |disk| disk.booted);
            let launched = context.keeper.launch(id, source, Some(vm.address()?)).await?;
            tracing::debug!(vm = %id, "VM {id} is launched from disk");
            // This is read after the launch: the creation of a later key finds the VMM, and admits the VM itself. As for a VM
            // that runs, the server refuses revoked keys, not the packet filter.
            if context.store.had_key(id).await? {
                context.keeper.admit_to_api(id).await?;
            }
            if egress != EgressPolicy::None {
                context.keeper.set_egress(id, VmEgress::new(vm.facts.account, egress)).await?;
            }
            let resumed = bring_up(context, launched, &vm.console, disk.is_none()).await?;
            tracing::debug!(vm = %id, "VM {id} runs again");
            context.keeper.commit(id).await?;
            Ok(resumed)
        };
        let resumed = resumed.await;
        if resumed.is_err() {
            end_vmm(&context.keeper, id).await;
        }
        resumed
    }
}

/// `memory`: whether the guest is the one of before its pause, and not another one with the same disk.
async fn bring_up(
    context: &VmContext,
    vm: LaunchedVm,
    console: &ConsoleLog,
    memory: bool,
) -> Result<Resumed, Error> {
    let LaunchedVm { launched, pidfd, monitor, agent, console: stream, state } = vm;
    tokio::spawn(console.clone().follow(stream));
    let machine: Arc<dyn Machine> = context.driver.restore(monitor, state.into()).await?.into();
    let begun = Instant::now();
    let guest = Guest::connect(agent, CONNECT_TIMEOUT).await?;
    guest.check_protocol().await?;
    if memory {
        hand_out::set_clock(&guest).await?;
        guest.thaw(None).await?;
    } else {
        // Its variables were in its memory alone.
        let env = BTreeMap::new();
        restore::give_identity(&guest, &launched, Environment::Given(&env), begun).await?;
    }
    Ok(Resumed { running: Running { machine, guest }, pid: launched.pid, pidfd })
}

/// Reserves the address of a VM that an earlier server left on disk, and ends its VMM, if it has one. Errors are logged: the VM
/// stays on disk with its files. Its resume is refused while another VM has its address. A VMM that is left is ended by a resume,
/// which fails, or with the VM.
pub(crate) async fn take_over(keeper: &ServerEnd, vm: &VmBooted, has_vmm: bool) {
    reserve_address(keeper, vm).await;
    if has_vmm {
        end_vmm(keeper, vm.id).await;
    }
}

async fn reserve_address(keeper: &ServerEnd, vm: &VmBooted) {
    let VmBooted { id, ip, .. } = vm;
    let Ok(address) = ip.parse::<Ipv4Addr>() else {
        tracing::error!(vm = %id, "VM {id}, which is on disk, cannot be resumed: `{ip}` is no address");
        return;
    };
    for attempt in 1..=ATTEMPTS {
        match keeper.reserve_address(address).await {
            Ok(()) => return,
            Err(error) if attempt == ATTEMPTS => {
                tracing::error!(vm = %id, %error, "the address {ip} of VM {id}, which is on disk, is not reserved: {error}");
            }
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Ends the VMM of a VM that is on disk. Its address stays reserved.
pub(super) async fn end_vmm(keeper: &ServerEnd, id: VmId) {
    for attempt in 1..=ATTEMPTS {
        match keeper.end(id).await {
            Ok(_) => {
                tracing::debug!(vm = %id, "the VMM of VM {id}, which is on disk, has ended");
                return;
            }
            Err(error) if error.code() == ErrorCode::UnknownVm => return,
            Err(error) if attempt == ATTEMPTS => {
                tracing::error!(vm = %id, %error, "the VMM of VM {id}, which is on disk, does not end: {error}");
            }
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Removes the snapshot of a VM and ends the reservation of its address.
pub(super) async fn remove(keeper: &ServerEnd, vm: &VmHandle, snapshot: TemplateId) {
    end_reservation(keeper, vm).await;
    remove_files(keeper, vm.facts.id, snapshot).await;
    // If files are left, the comparison of records and files removes them from now on.
    vm.set_snapshot(None);
}

/// Like [`remove`], of a VM that was resumed: it does not wait until its files are removed.
pub(super) async fn remove_in_background(keeper: &ServerEnd, vm: &VmHandle, snapshot: TemplateId) {
    end_reservation(keeper, vm).await;
    // This does not wait for the removal: the VM may be paused again meanwhile, which sets another snapshot.
    vm.set_snapshot(None);
    let (keeper, id) = (keeper.clone(), vm.facts.id);
    tokio::spawn(async move { remove_files(&keeper, id, snapshot).await });
}

async fn end_reservation(keeper: &ServerEnd, vm: &VmHandle) {
    let id = vm.facts.id;
    if let Ok(address) = vm.address()
        && let Err(error) = keeper.end_reservation(address).await
    {
        tracing::warn!(vm = %id, %error, "the address of VM {id} stays reserved: {error}");
    }
}

async fn remove_files(keeper: &ServerEnd, id: VmId, snapshot: TemplateId) {
    if let Err(error) = keeper.remove_template(snapshot).await
        && error.code() != ErrorCode::UnknownTemplate
    {
        tracing::warn!(vm = %id, %error, "the files of VM {id} on disk are not removed yet: {error}");
    }
}
