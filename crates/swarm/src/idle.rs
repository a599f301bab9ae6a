//! Pauses and ends VMs that are idle, as they are set to.
//!
//! A VM is active while a call needs its guest, while the command of its boot runs, and while a connection through egress is
//! open. What commands left behind in the guest is no activity.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use skep_api::{
    AccountId, ErrorCode,
    swarm::{EndReason, OnIdle, PausedBy, PausedTo},
};
use skep_keeper_protocol::ServerEnd;
use skep_store::Pause;
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use crate::{
    registry::Registry,
    vm::{VmContext, VmHandle},
};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks at all VMs each second until the keeper is gone.
pub(crate) async fn run(context: VmContext) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_move: Option<JoinHandle<bool>> = None;
    while !context.keeper.is_closed() {
        ticks.tick().await;
        for vm in context.registry.all() {
            if vm.due_to_idleness().is_some() {
                tokio::spawn(pause_or_end(context.keeper.clone(), vm));
            }
        }
        let is_moving = last_move.as_ref().is_some_and(|last_move| !last_move.is_finished());
        if !is_moving && context.budget.is_memory_short() {
            last_move = Some(spawn_move_to_disk(&context.registry, None));
        }
    }
}

async fn pause_or_end(keeper: ServerEnd, vm: VmHandle) {
    // Held until the pause is over. A call that begins meanwhile waits, and then resumes the VM.
    let Some(_no_calls) = vm.activity.exclude_calls() else { return };
    let Some(on_idle) = vm.due_to_idleness() else { return };
    if has_open_connections(&keeper, &vm).await {
        vm.activity.touch();
        return;
    }
    let by = PausedBy::Idle;
    let done = match on_idle {
        OnIdle::Pause => vm.pause(Pause { to: PausedTo::Memory, by }, None).await.map(drop),
        OnIdle::PauseToDisk => vm.pause(Pause { to: PausedTo::Disk, by }, None).await.map(drop),
        OnIdle::End => vm.end(EndReason::Idle, None).await.map(drop),
    };
    // The task of the VM logs errors. It is tried again after another timeout.
    if done.is_err() {
        vm.activity.touch();
    }
}

async fn has_open_connections(keeper: &ServerEnd, vm: &VmHandle) -> bool {
    // A VM whose connections cannot be counted is not taken for idle.
    vm.has_egress()
        && keeper.egress_report(vm.facts.id).await.map_or(true, |report| report.open_connections > 0)
}

/// The VMs that keep their memory in a pause for being idle.
pub(crate) fn in_memory(registry: &Registry) -> Vec<VmHandle> {
    registry.all().into_iter().filter(VmHandle::is_idle_in_memory).collect()
}

/// Pauses the VM to disk that is idle for the longest time, of those that keep their memory in a pause for being idle. Those
/// of the account `first` precede all others. Returns whether there was one, and it is on disk now.
///
/// The move runs in a task of its own, because a guest may take a minute to stop its programs: a caller that stops waiting
/// does not cancel it.
pub(crate) fn spawn_move_to_disk(registry: &Arc<Registry>, first: Option<AccountId>) -> JoinHandle<bool> {
    let registry = Arc::clone(registry);
    tokio::spawn(async move { move_one_to_disk(&registry, first).await })
}

async fn move_one_to_disk(registry: &Registry, first: Option<AccountId>) -> bool {
    let mut idle = in_memory(registry);
    idle.sort_by_key(|vm| (Some(vm.facts.account) != first, Reverse(vm.activity.idle_time())));
    for vm in idle {
        let Some(_no_calls) = vm.activity.exclude_calls() else { continue };
        let pause = Pause { to: PausedTo::Disk, by: PausedBy::Memory };
        if !vm.is_idle_in_memory() {
            continue;
        }
        let Err(error) = vm.pause(pause, None).await else { return true };
        // The others are tried before it the next time.
        vm.activity.touch();
        // After an update of QEMU no VM can be stored, and each attempt lets the VM run for a moment.
        if error.code() == ErrorCode::TemplateNotReady {
            return false;
        }
    }
    false
}
