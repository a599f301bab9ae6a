//! The command that a VM was booted with: started once the VM is on record, and followed until one of the two ends.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_api::{
    ErrorCode,
    exec::{ExecExit, RunCommand, Stdin},
    tickets::Object,
};
use skep_store::{CommandOutcome, RecordCommandEnd, Store};
use tokio::time::sleep;

use crate::{Error, command_outcome, run_log::RunLog, vm::VmHandle};

/// How long it may run: longer than any ticket's attempt.
pub(crate) const LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The pause before the guest or the store is asked again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Starts it, and follows it from then on.
pub(crate) async fn start(vm: &VmHandle, store: &Arc<dyn Store>, command: &str) -> Result<(), Error> {
    let Some(exec_id) = &vm.facts.exec_id else { return Ok(()) };
    let command = RunCommand {
        command: command.to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: u64::try_from(LIMIT.as_millis()).unwrap_or(u64::MAX),
    };
    vm.guest.start_detached(exec_id, &command).await?;
    follow(vm, store);
    Ok(())
}

/// Waits, in a task of its own, for the end of one that was started, and records it with what it means for the ticket of the
/// VM. Where the VM ends first, its own end says all.
pub(crate) fn follow(vm: &VmHandle, store: &Arc<dyn Store>) {
    let (vm, store) = (vm.clone(), Arc::clone(store));
    tokio::spawn(async move {
        if let Some(exec_id) = &vm.facts.exec_id
            && let Some(outcome) = outcome(&vm, exec_id, &store).await
        {
            record(&*store, RecordCommandEnd { vm: vm.facts.id, outcome, at: Timestamp::now() }).await;
        }
        vm.command_is_over();
    });
}

/// `None` where its VM ended first.
async fn outcome(vm: &VmHandle, exec_id: &str, store: &Arc<dyn Store>) -> Option<CommandOutcome> {
    let log = match vm.facts.ticket {
        Some(_) => Some(RunLog::resume(store, vm.facts.id).await),
        None => None,
    };
    match ended(vm, exec_id, log).await {
        CommandEnd::Exit(exit) if vm.facts.ticket.is_some() => command_outcome::of(vm, exec_id, &exit).await,
        CommandEnd::Exit(_) => Some(CommandOutcome::GivesBack(Object::new())),
        CommandEnd::Forgotten => Some(command_outcome::of_forgotten()),
        CommandEnd::WithVm => None,
    }
}

/// How the command of a boot ended.
enum CommandEnd {
    Exit(ExecExit),
    /// The guest does not know the command: the server ended before the command was started, or the command ended so long
    /// before this server began that the guest has forgotten it.
    Forgotten,
    /// Its VM ended first.
    WithVm,
}

async fn ended(vm: &VmHandle, exec_id: &str, mut log: Option<RunLog>) -> CommandEnd {
    let mut pause = FIRST_PAUSE;
    loop {
        let end = match &mut log {
            Some(log) => log.follow(vm, exec_id).await,
            None => vm.guest.end_of(exec_id, LIMIT).await,
        };
        let error = match end {
            Ok(exit) => {
                let ExecExit { exit_code, signal, .. } = &exit;
                tracing::info!(vm = %vm.facts.id, ?exit_code, ?signal, "the command of VM {} ended", vm.facts.id);
                return CommandEnd::Exit(exit);
            }
            Err(error) => error,
        };
        if vm.guest.is_closed() {
            return CommandEnd::WithVm;
        }
        if error.code() == ErrorCode::UnknownExec {
            tracing::warn!(vm = %vm.facts.id, "VM {} knows its command no more", vm.facts.id);
            return CommandEnd::Forgotten;
        }
        tracing::warn!(vm = %vm.facts.id, %error, "the command of VM {} cannot be followed now: {error}", vm.facts.id);
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A ticket whose agent has ended would be held for as long as its VM lives, so the store is asked until it answers.
async fn record(store: &dyn Store, end: RecordCommandEnd) {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = store.record_command_end(end.clone()).await {
        if error.code() == ErrorCode::UnknownVm {
            return;
        }
        tracing::error!(vm = %end.vm, %error, "the end of the command of VM {} is not on record yet", end.vm);
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
