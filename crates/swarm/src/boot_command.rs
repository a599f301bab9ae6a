//! The command of a boot. It is started after the VM is recorded, and followed until the command or the VM ends.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{
    ErrorCode,
    exec::{ExecExit, RunCommand, Stdin},
    tickets::Object,
};
use skep_store::{CommandOutcome, RecordCommandEnd, VmStore};
use tokio::time::sleep;

use crate::{Error, command_outcome, run_log::RunLog, vm::VmHandle};

/// Time limit of the command: longer than any attempt at a ticket.
pub(crate) const MAX_COMMAND_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);
/// Back-off between attempts at the guest or the store. Doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Starts the command and follows it.
pub(crate) async fn start(vm: &VmHandle, store: &Arc<dyn VmStore>, command: &str) -> Result<(), Error> {
    let Some(exec_id) = &vm.facts.exec_id else { return Ok(()) };
    let command = RunCommand {
        command: command.to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: u64::try_from(MAX_COMMAND_DURATION.as_millis()).unwrap_or(u64::MAX),
    };
    let guest = vm.running_guest().await.ok_or(skep_channel::Error::Ended)?;
    guest.start_detached(exec_id, &command).await?;
    follow(vm, store);
    Ok(())
}

/// Waits in a new task for the end of a started command, and records it with its outcome for the VM's ticket. If the VM
/// ends first, nothing is recorded here: the end of the VM decides about the ticket.
pub(crate) fn follow(vm: &VmHandle, store: &Arc<dyn VmStore>) {
    let (vm, store) = (vm.clone(), Arc::clone(store));
    tokio::spawn(async move {
        if let Some(exec_id) = &vm.facts.exec_id
            && let Some(outcome) = outcome(&vm, exec_id, &store).await
        {
            record(&*store, RecordCommandEnd { vm: vm.facts.id, outcome, at: Timestamp::now() }).await;
        }
        vm.mark_command_over();
    });
}

/// `None` if the VM ended first.
async fn outcome(vm: &VmHandle, exec_id: &str, store: &Arc<dyn VmStore>) -> Option<CommandOutcome> {
    let log = match vm.facts.ticket {
        Some(_) => Some(RunLog::resume(store, vm.facts.id).await),
        None => None,
    };
    match wait_for_end(vm, exec_id, log).await {
        CommandEnd::Exit(exit) if vm.facts.ticket.is_some() => {
            command_outcome::from_exit(vm, exec_id, &exit).await
        }
        CommandEnd::Exit(_) => Some(CommandOutcome::Released(Object::new())),
        CommandEnd::Unknown => Some(command_outcome::for_unknown_command()),
        CommandEnd::VmEnded => None,
    }
}

enum CommandEnd {
    Exit(ExecExit),
    /// The guest does not know the command: the earlier server ended before it was started, or the command ended so
    /// long before this server started that the guest has dropped its state.
    Unknown,
    VmEnded,
}

async fn wait_for_end(vm: &VmHandle, exec_id: &str, mut log: Option<RunLog>) -> CommandEnd {
    let mut pause = INITIAL_BACKOFF;
    loop {
        let Some(guest) = vm.running_guest().await else { return CommandEnd::VmEnded };
        let end = match &mut log {
            Some(log) => log.follow(&guest, exec_id).await,
            None => guest.wait_for_exit(exec_id, MAX_COMMAND_DURATION).await,
        };
        let error = match end {
            Ok(exit) => {
                let ExecExit { exit_code, signal, .. } = &exit;
                tracing::info!(vm = %vm.facts.id, ?exit_code, ?signal, "the command of VM {} ended", vm.facts.id);
                return CommandEnd::Exit(exit);
            }
            Err(error) => error,
        };
        // The VM ends, or it was paused to disk and has another connection after its resume, which may be done already.
        if guest.is_closed() {
            continue;
        }
        if error.code() == ErrorCode::UnknownExec {
            tracing::warn!(vm = %vm.facts.id, "VM {} does not know its command any more", vm.facts.id);
            return CommandEnd::Unknown;
        }
        tracing::warn!(vm = %vm.facts.id, %error, "the command of VM {} cannot be followed now: {error}", vm.facts.id);
        sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
    }
}

/// Retries until the end is recorded: otherwise the ticket would stay claimed until the VM ends.
async fn record(store: &dyn VmStore, end: RecordCommandEnd) {
    let mut pause = INITIAL_BACKOFF;
    while let Err(error) = store.record_command_end(end.clone()).await {
        if error.code() == ErrorCode::UnknownVm {
            return;
        }
        tracing::error!(vm = %end.vm, %error, "the end of the command of VM {} is not on record yet", end.vm);
        sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
    }
}
