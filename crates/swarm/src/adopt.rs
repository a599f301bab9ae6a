//! Adoption of VMs that outlived an earlier server.
//!
//! A boot commits a VM at the keeper, then records it in the store, then answers the caller. So every VM that a caller
//! knows is in both. A VM that only the keeper has is ended; a VM that only the store has is recorded as lost.

mod attempt;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use skep_api::{
    ErrorCode, Failure, TemplateId, VmId,
    egress::EgressPolicy,
    swarm::{EndReason, PausedTo},
};
use skep_keeper_protocol::{HeldVm, ServerEnd, TemplateStatus, VmEgress};
use skep_store::{EndVms, Pause, VmBooted, VmRecord, VmStore, VmToEnd};
use tokio::time::timeout;

use self::attempt::{AdoptedVm, AdoptionError, Attempt};
use crate::{
    Error, Observer, boot_command,
    budget::Budget,
    console::ConsoleLog,
    loss::{self, Step},
    restore::Restorer,
    vm::{self, Live, OnDisk, RecordedVm, VmContext},
};

/// Concurrent adoptions.
const MAX_CONCURRENT_ADOPTIONS: usize = 16;
/// Time limit of one adoption. The server does not accept requests before all are done.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of the first attempt. It is shorter than what it leaves to the second one, because a slow VM needs that time.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Adopts VMs that have a VMM and are recorded, each in the state on record. Ends VMs without a record, and records VMs
/// that do not answer, or whose agent speaks another protocol, as lost, unless memory ran out. VMs on disk are never lost.
///
/// # Errors
/// The keeper or the store is not available.
pub(crate) async fn adopt_vms(
    restorer: &Restorer,
    surroundings: &VmContext,
    budget: &Arc<Budget>,
) -> Result<(), Error> {
    let VmContext { keeper, store, .. } = surroundings;
    let alive = store.live_vms().await?;
    let busy: HashSet<VmId> =
        alive.iter().filter(|record| record.command_runs).map(|record| record.vm.id).collect();
    let mut held = held_on_record(keeper, &alive).await?;
    let stored = stored_of(keeper, &alive).await?;
    let mut former_pids = former_pids_of(&**store).await?;
    let alive: Vec<_> = alive.into_iter().map(|record| (held.remove(&record.vm.id), record)).collect();
    let mut outcomes = stream::iter(alive)
        .map(|(held, record)| async move {
            let vm = record.vm.id;
            (vm, reconnect(restorer, budget, held, record).await)
        })
        .buffer_unordered(MAX_CONCURRENT_ADOPTIONS);
    let (mut lost, mut out_of_memory) = (Vec::new(), Vec::new());
    while let Some((vm, outcome)) = outcomes.next().await {
        match outcome {
            Ok(adopted) => {
                let handle = vm::spawn_vm_task(adopted, surroundings.clone());
                handle.set_former_pids(former_pids.remove(&vm).unwrap_or_default());
                if let Some(snapshot) = stored.get(&vm) {
                    handle.set_stored(snapshot);
                }
                if busy.contains(&vm) {
                    boot_command::follow(&handle, store);
                } else {
                    handle.mark_command_over();
                }
            }
            Err(AdoptionError { step, error }) => {
                let reason = restorer.end_unrecorded(vm).await;
                let (group, verb, message) = match reason {
                    // The guard or the kernel ended it while no server ran.
                    Some(memory) => (&mut out_of_memory, "ended", memory.to_string()),
                    None => (&mut lost, "is lost", loss::message(step, &error)),
                };
                tracing::warn!(%vm, %error, "VM {vm} of an earlier start {verb}: {message}");
                group.push(VmToEnd { vm, message: Some(message) });
            }
        }
    }
    record_ends(&**store, EndReason::OutOfMemory, out_of_memory, &*surroundings.observer).await?;
    record_ends(&**store, EndReason::Lost, lost, &*surroundings.observer).await
}

/// The VMs of the keeper that are on record. The others are ended.
async fn held_on_record(keeper: &ServerEnd, alive: &[VmRecord]) -> Result<HashMap<VmId, HeldVm>, Error> {
    let mut held: HashMap<VmId, HeldVm> = HashMap::new();
    for found in keeper.list().await? {
        let vm = found.launched.vm;
        if alive.iter().any(|record| record.vm.id == vm) {
            held.insert(vm, found);
        } else {
            tracing::warn!(
                %vm,
                "VM {vm} is ended: the store does not have it; its boot was not answered yet when the server stopped, or it \
                 was booted after the backup that `skep restore` put in place"
            );
            keeper.end(vm).await?;
        }
    }
    Ok(held)
}

/// The snapshots of the VMs on disk.
async fn stored_of(keeper: &ServerEnd, alive: &[VmRecord]) -> Result<HashMap<VmId, TemplateStatus>, Error> {
    let is_on_disk = |record: &&VmRecord| record.pause.is_some_and(|pause| pause.to == PausedTo::Disk);
    let of_snapshots: HashMap<TemplateId, VmId> = alive
        .iter()
        .filter(is_on_disk)
        .filter_map(|record| record.snapshot.map(|snapshot| (snapshot, record.vm.id)))
        .collect();
    if of_snapshots.is_empty() {
        return Ok(HashMap::new());
    }
    let templates = keeper.list_templates().await?;
    let stored = |status: TemplateStatus| Some((*of_snapshots.get(&status.template)?, status));
    Ok(templates.into_iter().filter_map(stored).collect())
}

/// The former process ids of VMs, oldest first.
async fn former_pids_of(store: &dyn VmStore) -> Result<HashMap<VmId, Vec<u32>>, Error> {
    let mut of_vms: HashMap<VmId, Vec<u32>> = HashMap::new();
    for (vm, pid) in store.former_pids().await? {
        of_vms.entry(vm).or_default().push(pid);
    }
    Ok(of_vms)
}

/// Records all VMs of the store as lost. For a server without a swarm, whose keeper ended the VMs of an earlier one.
///
/// # Errors
/// The store is not available.
pub async fn record_all_as_lost(store: &dyn VmStore, observer: &dyn Observer) -> Result<(), Error> {
    let mut lost = Vec::new();
    for VmRecord { vm: VmBooted { id: vm, .. }, .. } in store.live_vms().await? {
        let message = "the server was started again without support for VMs";
        tracing::warn!(%vm, "VM {vm} of an earlier start is lost: {message}");
        lost.push(VmToEnd { vm, message: Some(message.to_owned()) });
    }
    record_ends(store, EndReason::Lost, lost, observer).await
}

async fn record_ends(
    store: &dyn VmStore,
    reason: EndReason,
    vms: Vec<VmToEnd>,
    observer: &dyn Observer,
) -> Result<(), Error> {
    if vms.is_empty() {
        return Ok(());
    }
    let ended = store.end_vms(EndVms { vms, reason, at: Timestamp::now() }).await?;
    ended.iter().for_each(|_| observer.ended(reason));
    Ok(())
}

/// Reconnects to a VM and puts it into the state on record.
async fn reconnect(
    restorer: &Restorer,
    budget: &Arc<Budget>,
    held: Option<HeldVm>,
    record: VmRecord,
) -> Result<RecordedVm, AdoptionError> {
    // Both limits count from now.
    let first = Attempt::first(FIRST_ATTEMPT_TIMEOUT);
    let second = first.again(ADOPTION_TIMEOUT);
    let VmRecord { vm: facts, pause, snapshot, resumed_at, .. } = record;
    if let (Some(snapshot), Some(Pause { to: PausedTo::Disk, by })) = (snapshot, pause) {
        let on_disk = OnDisk { snapshot, by };
        return Ok(adopt_on_disk(restorer, held.is_some(), facts, on_disk, resumed_at).await);
    }
    let gone = |reason: &str| AdoptionError {
        step: Step::Keeper,
        error: Failure::new(ErrorCode::VmEnded, reason).into(),
    };
    let held = held.ok_or_else(|| gone("its process ended while no server ran"))?;
    if held.launched.pid != facts.pid {
        return Err(gone("it is another process than the one on record"));
    }
    let adopted = match first.reach(restorer, facts.id, pause).await {
        Err(failed) if failed.error.new_streams_may_help() => {
            let (vm, message) = (facts.id, loss::message(failed.step, &failed.error));
            tracing::warn!(%vm, error = %failed.error, "VM {vm} of an earlier start is attached again: {message}");
            second.reach(restorer, vm, pause).await
        }
        outcome => outcome,
    };
    let AdoptedVm { pidfd, console, state } = adopted?;
    set_recorded_egress(&restorer.keeper, &facts).await;
    let (reservation, pidfd) = (Some(budget.reserve_running(facts.account, facts.memory_mb)), Some(pidfd));
    let is_paused = pause.is_some();
    tracing::info!(vm = %facts.id, pid = facts.pid, is_paused, "VM {} is taken over", facts.id);
    let arrived = monotonic_start(facts.started_at);
    let deadline = vm::deadline(facts.attributes.expires_at);
    // What it did under an earlier server is not counted by this one.
    let counted_traffic = None;
    Ok(RecordedVm {
        facts,
        console,
        pidfd,
        arrived,
        deadline,
        reservation,
        resumed_at,
        state,
        counted_traffic,
    })
}

/// Sets what a VM may connect to as the store has it. The keeper has another policy after `skep restore`.
async fn set_recorded_egress(keeper: &ServerEnd, facts: &VmBooted) {
    let (vm, account) = (facts.id, facts.account);
    let egress = VmEgress::new(account, facts.attributes.egress.clone());
    let Err(error) = keeper.set_egress(vm, egress).await else { return };
    tracing::error!(%vm, %error, "VM {vm} is cut off from all hosts, because its egress policy is not applied: {error}");
    // The one from before may allow more than the record.
    if let Err(error) = keeper.set_egress(vm, VmEgress::new(account, EgressPolicy::None)).await {
        tracing::error!(%vm, %error, "VM {vm} may have another egress policy than its record: {error}");
    }
}

/// Takes over a VM that is on disk. If it has a VMM, the earlier server ended during a pause or a resume of the VM, and no caller
/// has used that VMM since, so it is ended. An error of the keeper does not prevent the takeover, because the files of a VM that
/// is recorded as lost are removed.
async fn adopt_on_disk(
    restorer: &Restorer,
    has_vmm: bool,
    facts: VmBooted,
    on_disk: OnDisk,
    resumed_at: Option<Timestamp>,
) -> RecordedVm {
    let vm = facts.id;
    if timeout(ADOPTION_TIMEOUT, vm::take_over(&restorer.keeper, &facts, has_vmm)).await.is_err() {
        let seconds = ADOPTION_TIMEOUT.as_secs();
        tracing::error!(%vm, "the keeper did not answer within {seconds} s about VM {vm}, which is on disk");
    }
    tracing::info!(%vm, "VM {vm} is on disk");
    RecordedVm {
        console: ConsoleLog::default(),
        pidfd: None,
        arrived: monotonic_start(facts.started_at),
        deadline: vm::deadline(facts.attributes.expires_at),
        reservation: None,
        resumed_at,
        state: Live::OnDisk(on_disk),
        counted_traffic: None,
        facts,
    }
}

/// Converts the start time to the monotonic clock, for uptimes.
fn monotonic_start(started_at: Timestamp) -> Instant {
    let age = Duration::try_from(Timestamp::now().duration_since(started_at)).unwrap_or_default();
    // After a change of the wall clock the start may lie before the boot of the machine.
    Instant::now().checked_sub(age).unwrap_or_else(Instant::now)
}
