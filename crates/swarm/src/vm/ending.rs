//! The end of a VM: its resources are removed, then its end is recorded. The files of a VM on disk are removed after that: a VM
//! that is on disk on record has them, whenever the server dies, unless the store could not write.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{ErrorCode, TemplateId, swarm::EndReason};
use skep_engine::VmmEnd;
use skep_keeper_protocol::OutOfMemory;
use skep_store::{Ended, RecordEnd, VmBooted, VmStore};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{
    Live, VmHandle,
    handle::{Command, EndCommand},
    on_disk,
    task::VmTask,
};
use crate::{Error, end_reason::VmEnding};

/// Back-off between attempts at the keeper or the store. Doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long to wait for the shutdown event of a VMM that exited. It is already in the monitor's socket then.
const SHUTDOWN_EVENT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a VMM that is ended may take to report what its disk did.
const LAST_SAMPLE_TIMEOUT: Duration = Duration::from_millis(250);
/// The message of a guest kernel's panic on the serial console.
const PANIC_MESSAGE: &str = "Kernel panic - not syncing";

/// A VM that must end.
pub(super) struct Ending {
    /// Its state before.
    pub(super) state: Live,
    pub(super) cause: Cause,
}

pub(super) enum Cause {
    /// The VMM's process ended by itself.
    Exited,
    Reason(EndReason),
    Command(EndCommand),
}

impl Ending {
    pub(super) async fn finish(self, mut task: VmTask) {
        let (given_reason, mut command) = match self.cause {
            Cause::Exited => (None, None),
            Cause::Reason(reason) => (Some(reason), None),
            Cause::Command(command) => (Some(command.reason), Some(command)),
        };
        let request_id = command.as_ref().and_then(|command| command.request_id.clone());
        let reported_end = match given_reason {
            Some(_) => None,
            None => reported_end(&self.state).await,
        };
        if given_reason.is_some() {
            // The last chance to count what it did; read once more for the totals.
            let _ = timeout(LAST_SAMPLE_TIMEOUT, task.disk.read()).await;
        }
        let memory = match &self.state {
            // It has no VMM that memory can run out for.
            Live::OnDisk(_) => None,
            Live::Running(_) | Live::Paused(_) => remove_resources(&mut task, &mut command).await,
        };
        let reason = given_reason.unwrap_or_else(|| end_reason(&task, reported_end, memory.is_some()));
        let message = memory.filter(|_| reason == EndReason::OutOfMemory).map(|memory| memory.to_string());
        let facts = &task.facts;
        tracing::info!(vm = %facts.id, pid = task.handle.pid(), reason = reason.as_str(), "VM {} ended", facts.id);
        let end = RecordEnd { vm: facts.id, reason, at: Timestamp::now(), request_id, message };
        let recorded = match &self.state {
            Live::OnDisk(vm) => record_before_removal(&mut task, vm.snapshot, &mut command, &end).await,
            Live::Running(_) | Live::Paused(_) => task.context.store.record_end(end.clone()).await,
        };
        let VmTask { handle, facts, context, ended, mut commands, access, reservation, .. } = task;
        context.registry.remove(end.vm);
        if let Live::OnDisk(vm) = &self.state {
            // It has a VMM only if that could not be ended before.
            on_disk::end_vmm(&context.keeper, end.vm).await;
            if handle.snapshot().is_some() {
                on_disk::remove(&context.keeper, &handle, vm.snapshot).await;
            }
        }
        // After the removal from the registry, so that a caller who gets the reason does not find the VM any more.
        ended.send_replace(Some(VmEnding { reason, message: end.message.clone() }));
        // This wakes the tasks that wait for the VM to run, and tells them that it ended.
        drop(access);
        context.observer.ended(reason);
        drop(reservation);
        commands.close();
        let outcome = recorded.clone().map(|_| ()).map_err(Error::from);
        if let Some(command) = command {
            // Fails only if the caller is gone.
            let _ = command.done.send(outcome.map(|()| true));
        }
        answer_late(&mut commands, &facts, &recorded);
        if let Err(error) = recorded {
            retry_record_end(context.store, end, error).await;
        }
    }
}

/// Answers the commands that arrived while the VM ended.
fn answer_late(
    commands: &mut mpsc::Receiver<Command>,
    facts: &VmBooted,
    recorded: &skep_store::Result<Ended>,
) {
    while let Ok(late) = commands.try_recv() {
        match late {
            Command::End(late) => {
                let _ = late.done.send(recorded.clone().map(|_| false).map_err(Error::from));
            }
            Command::Other(late) => late.refuse(facts),
        }
    }
}

impl VmHandle {
    /// Waits for an answer of the guest, unless a command waits that ends the VM: the guest may hold the answer back for long.
    ///
    /// # Errors
    /// That of the answer, or that the VM ended.
    pub(super) async fn unless_ended<T>(
        &self,
        answer: impl Future<Output = Result<T, skep_channel::Error>>,
    ) -> Result<T, skep_channel::Error> {
        tokio::select! {
            answer = answer => answer,
            () = self.end_requested() => Err(skep_channel::Error::Ended),
        }
    }

    pub(super) fn is_end_requested(&self) -> bool {
        *self.end_requested.borrow()
    }

    async fn end_requested(&self) {
        // The sender lives as long as `self`, so this never fails.
        let _ = self.end_requested.subscribe().wait_for(|requested| *requested).await;
    }
}

/// The reason that the VMM reported for its end.
async fn reported_end(state: &Live) -> Option<VmmEnd> {
    timeout(SHUTDOWN_EVENT_TIMEOUT, state.machine()?.ended()).await.unwrap_or(None)
}

/// Lets the keeper remove the VM's resources, and returns whether and why it was ended because memory ran out. Retries until
/// that succeeds. Meanwhile the VM stays listed and counted, and requests to end it get the keeper's error.
async fn remove_resources(task: &mut VmTask, command: &mut Option<EndCommand>) -> Option<OutOfMemory> {
    let vm = task.facts.id;
    let mut pause = INITIAL_BACKOFF;
    loop {
        let error = match task.context.keeper.end(vm).await {
            Ok(out_of_memory) => return out_of_memory,
            // Its resources are already removed.
            Err(error) if error.code() == ErrorCode::UnknownVm => return None,
            Err(error) => error,
        };
        tracing::error!(%vm, %error, "VM {vm} cannot be ended now");
        wait_for_retry(task, command, error.into(), &mut pause).await;
    }
}

/// Records the end of a VM on disk. Retries until that succeeds: if the server died meanwhile, the VM must still have its files.
/// Only a store that cannot write, for example because its disk is full, lets the files go first. The VM stays listed and
/// counted, and requests to end it get the store's error.
async fn record_before_removal(
    task: &mut VmTask,
    snapshot: TemplateId,
    command: &mut Option<EndCommand>,
    end: &RecordEnd,
) -> skep_store::Result<Ended> {
    let vm = end.vm;
    let mut pause = INITIAL_BACKOFF;
    let mut files_removed = false;
    loop {
        let error = match task.context.store.record_end(end.clone()).await {
            Ok(ended) => {
                tracing::debug!(%vm, "the end of VM {vm}, which was on disk, is on record");
                return Ok(ended);
            }
            Err(error) if error.code() == ErrorCode::UnknownVm => return Err(error),
            Err(error) => error,
        };
        tracing::error!(%vm, %error, "the end of VM {vm}, which is on disk, is not on record yet: {error}");
        if error.code() == ErrorCode::StoreUnavailable && !files_removed {
            // The files may be what fills the disk of the store.
            on_disk::remove(&task.context.keeper, &task.handle, snapshot).await;
            files_removed = true;
            continue;
        }
        wait_for_retry(task, command, error.into(), &mut pause).await;
    }
}

/// Answers the command with the error of an attempt, and waits until the next attempt is due.
async fn wait_for_retry(
    task: &mut VmTask,
    command: &mut Option<EndCommand>,
    error: Error,
    pause: &mut Duration,
) {
    if let Some(command) = command.take() {
        // Fails only if the caller is gone.
        let _ = command.done.send(Err(error));
    }
    tokio::select! {
        next = task.commands.recv() => match next {
            Some(Command::End(next)) => *command = Some(next),
            Some(Command::Other(other)) => other.refuse(&task.facts),
            None => {}
        },
        () = sleep(*pause) => *pause = (*pause * 2).min(MAX_BACKOFF),
    }
}

fn end_reason(task: &VmTask, reported: Option<VmmEnd>, out_of_memory: bool) -> EndReason {
    match reported {
        _ if out_of_memory => EndReason::OutOfMemory,
        // A panic ends in a reset, as an intended reboot does; only the console distinguishes them.
        Some(VmmEnd::Poweroff) if !task.console.read().console.contains(PANIC_MESSAGE) => EndReason::Poweroff,
        _ => EndReason::Crashed,
    }
}

/// Retries until the end is recorded: a VM that is alive on record would keep its API keys.
async fn retry_record_end(store: Arc<dyn VmStore>, end: RecordEnd, mut error: skep_store::Error) {
    let mut pause = INITIAL_BACKOFF;
    while error.code() != ErrorCode::UnknownVm {
        tracing::error!(vm = %end.vm, %error, "the end of VM {} is not on record yet", end.vm);
        sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
        match store.record_end(end.clone()).await {
            Ok(_) => return,
            Err(next_error) => error = next_error,
        }
    }
}
