//! Adoption of VMs that outlived an earlier server.
//!
//! A boot commits a VM at the keeper, then records it in the store, then answers the caller. So every VM that a caller
//! knows is in both. A VM that only the keeper has is ended; a VM that only the store has is recorded as lost.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use skep_api::{
    ErrorCode, Failure, TemplateId, VmId,
    swarm::{EndReason, PausedBy, PausedTo},
};
use skep_channel::Guest;
use skep_engine::Machine;
use skep_keeper_protocol::{AttachedVm, HeldVm, ServerEnd, TemplateStatus};
use skep_store::{EndVms, Pause, VmBooted, VmRecord, VmStore, VmToEnd};
use tokio::{net::UnixStream, time::timeout};

use crate::{
    Error, Observer, boot_command,
    budget::Budget,
    console::ConsoleLog,
    disk_quota::stored_bytes,
    loss,
    restore::Restorer,
    vm::{self, Live, OnDisk, Paused, RecordedVm, Running, VmContext},
};

/// Concurrent adoptions.
const MAX_CONCURRENT_ADOPTIONS: usize = 16;
/// Time limit of one adoption. The server does not accept requests before all are done.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Adopts VMs that have a VMM and are recorded, each in the state on record. Ends VMs without a record, and records VMs
/// that do not answer, or whose agent speaks another protocol, as lost, unless memory ran out.
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
    let stored = stored_bytes_of(keeper, &alive).await?;
    let alive: Vec<_> = alive.into_iter().map(|record| (held.remove(&record.vm.id), record)).collect();
    let mut outcomes = stream::iter(alive)
        .map(|(held, record)| async move {
            let vm = record.vm.id;
            let reached = timeout(ADOPTION_TIMEOUT, reconnect(restorer, budget, held, record));
            (vm, reached.await.unwrap_or_else(|_| Err(skep_channel::Error::Timeout(ADOPTION_TIMEOUT).into())))
        })
        .buffer_unordered(MAX_CONCURRENT_ADOPTIONS);
    let (mut lost, mut out_of_memory) = (Vec::new(), Vec::new());
    while let Some((vm, outcome)) = outcomes.next().await {
        match outcome {
            Ok(reached) => {
                let handle = vm::spawn_vm_task(reached, surroundings.clone());
                handle.set_stored_bytes(stored.get(&vm).copied().unwrap_or_default());
                if busy.contains(&vm) {
                    boot_command::follow(&handle, store);
                } else {
                    handle.mark_command_over();
                }
            }
            Err(error) => {
                let reason = restorer.end_unrecorded(vm).await;
                let (group, verb, message) = match reason {
                    // The guard or the kernel ended it while no server ran.
                    Some(memory) => (&mut out_of_memory, "ended", memory.to_string()),
                    None => (&mut lost, "is lost", loss::message(&error)),
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

/// What the VMs on disk occupy, in bytes.
async fn stored_bytes_of(keeper: &ServerEnd, alive: &[VmRecord]) -> Result<HashMap<VmId, u64>, Error> {
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
    let stored = |status: &TemplateStatus| Some((*of_snapshots.get(&status.template)?, stored_bytes(status)));
    Ok(templates.iter().filter_map(stored).collect())
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

/// Reconnects to a VM and puts it into the state on record. Checks that the guest of a VM that runs answers, in a
/// protocol that this release speaks.
async fn reconnect(
    restorer: &Restorer,
    budget: &Arc<Budget>,
    held: Option<HeldVm>,
    record: VmRecord,
) -> Result<RecordedVm, Error> {
    let VmRecord { vm: facts, pause, snapshot, resumed_at, .. } = record;
    if let (Some(snapshot), Some(Pause { to: PausedTo::Disk, by })) = (snapshot, pause) {
        return adopt_on_disk(restorer, held, facts, OnDisk { snapshot, by }, resumed_at).await;
    }
    let gone = |reason: &str| Error::from(Failure::new(ErrorCode::VmEnded, reason));
    let held = held.ok_or_else(|| gone("its process ended while no server ran"))?;
    if held.launched.pid != facts.pid {
        return Err(gone("it is another process than the one on record"));
    }
    let AttachedVm { pidfd, monitor, agent, console: output, .. } = restorer.keeper.attach(facts.id).await?;
    let machine: Arc<dyn Machine> = restorer.driver.attach(monitor).await?.into();
    let console = ConsoleLog::default();
    tokio::spawn(console.clone().follow(output));
    let state = match_record(restorer, facts.id, machine, agent, pause).await?;
    if let Live::Running(running) = &state {
        thaw(&running.guest).await?;
    }
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

/// Takes over a VM that is on disk. A VMM of it is ended: the earlier server ended while it paused or resumed the VM, and no
/// caller has used what ran since.
async fn adopt_on_disk(
    restorer: &Restorer,
    held: Option<HeldVm>,
    facts: VmBooted,
    on_disk: OnDisk,
    resumed_at: Option<Timestamp>,
) -> Result<RecordedVm, Error> {
    let address =
        facts.ip.parse().map_err(|_| Failure::new(ErrorCode::Internal, "its address is invalid"))?;
    restorer.keeper.reserve_address(address).await?;
    if held.is_some() {
        restorer.keeper.end(facts.id).await?;
    }
    tracing::info!(vm = %facts.id, "VM {} is on disk", facts.id);
    Ok(RecordedVm {
        console: ConsoleLog::default(),
        pidfd: None,
        arrived: monotonic_start(facts.started_at),
        deadline: vm::deadline(facts.attributes.expires_at),
        reservation: None,
        resumed_at,
        state: Live::OnDisk(on_disk),
        counted_traffic: None,
        facts,
    })
}

/// Puts a VM into the state on record.
async fn match_record(
    restorer: &Restorer,
    vm: VmId,
    machine: Arc<dyn Machine>,
    agent: UnixStream,
    pause: Option<Pause>,
) -> Result<Live, Error> {
    Ok(match (pause, machine.is_running().await?) {
        (Some(pause), runs) => {
            // The earlier server ended while it resumed the VM.
            if runs {
                machine.pause().await?;
            }
            Live::Paused(Paused::adopted(machine, agent, pause.by))
        }
        // The earlier server ended while it paused the VM.
        (None, false) => {
            let resumed =
                Paused::adopted(machine, agent, PausedBy::Request).resume(&restorer.keeper, vm).await;
            Live::Running(resumed.map_err(|(_, error)| error)?)
        }
        (None, true) => {
            let guest = Guest::connect(agent, ADOPTION_TIMEOUT).await?;
            guest.check_protocol().await?;
            Live::Running(Running { machine, guest })
        }
    })
}

/// Lets the programs of a VM run that an earlier server froze for a copy before it ended.
async fn thaw(guest: &Guest) -> Result<(), Error> {
    match guest.thaw(None).await {
        // An agent of an earlier release has never frozen any.
        Err(skep_channel::Error::Refused(failure)) if failure.code == ErrorCode::UnknownRoute => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Converts the start time to the monotonic clock, for uptimes.
fn monotonic_start(started_at: Timestamp) -> Instant {
    let age = Duration::try_from(Timestamp::now().duration_since(started_at)).unwrap_or_default();
    // After a change of the wall clock the start may lie before the boot of the machine.
    Instant::now().checked_sub(age).unwrap_or_else(Instant::now)
}
