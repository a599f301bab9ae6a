//! The end of a VM: its resources are removed, then its end is recorded.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{ErrorCode, swarm::EndReason};
use skep_engine::VmmEnd;
use skep_keeper_protocol::OutOfMemory;
use skep_store::{RecordEnd, VmStore};
use tokio::time::{sleep, timeout};

use super::{
    Live,
    handle::{Command, EndCommand},
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
            Live::OnDisk(vm) => vm.remove(&task.context.keeper, &task.handle).await,
            Live::Running(_) | Live::Paused(_) => remove_resources(&mut task, &mut command).await,
        };
        let reason = given_reason.unwrap_or_else(|| end_reason(&task, reported_end, memory.is_some()));
        let message = memory.filter(|_| reason == EndReason::OutOfMemory).map(|memory| memory.to_string());
        let facts = &task.facts;
        tracing::info!(vm = %facts.id, pid = task.handle.pid(), reason = reason.as_str(), "VM {} ended", facts.id);
        let end = RecordEnd { vm: facts.id, reason, at: Timestamp::now(), request_id, message };
        let recorded = task.context.store.record_end(end.clone()).await;
        let VmTask { facts, context, ended, mut commands, access, reservation, .. } = task;
        context.registry.remove(end.vm);
        // After the removal from the registry, so that a caller who gets the reason does not find the VM any more.
        ended.send_replace(Some(VmEnding { reason, message: end.message.clone() }));
        // Who waits for the VM to run learns that it ended.
        drop(access);
        context.observer.ended(reason);
        drop(reservation);
        commands.close();
        let outcome = recorded.clone().map(|_| ()).map_err(Error::from);
        if let Some(command) = command {
            // Fails only if the caller is gone.
            let _ = command.done.send(outcome.map(|()| true));
        }
        while let Ok(late) = commands.try_recv() {
            match late {
                Command::End(late) => {
                    let _ = late.done.send(recorded.clone().map(|_| false).map_err(Error::from));
                }
                Command::Other(late) => late.refuse(&facts),
            }
        }
        if let Err(error) = recorded {
            retry_record_end(context.store, end, error).await;
        }
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
        if let Some(command) = command.take() {
            let _ = command.done.send(Err(error.into()));
        }
        tokio::select! {
            next = task.commands.recv() => match next {
                Some(Command::End(next)) => *command = Some(next),
                Some(Command::Other(other)) => other.refuse(&task.facts),
                None => {}
            },
            () = sleep(pause) => pause = (pause * 2).min(MAX_BACKOFF),
        }
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
