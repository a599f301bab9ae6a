//! One VM: the task that owns it, and the handle that others have.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::{
    Failure,
    swarm::{EndReason, Vm, VmState},
};
use skep_channel::Guest;
use skep_engine::{Machine, VmmEnd};
use skep_keeper_protocol::ServerEnd;
use skep_store::{RecordEnd, Store, VmBooted};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{Error, budget::Reservation, console::ConsoleLog, registry::Registry};

/// After its process is gone, a VMM's last word is already in the monitor's socket.
const LAST_WORD: Duration = Duration::from_millis(500);
/// How a guest's kernel announces its death on the serial console.
const PANIC: &str = "Kernel panic - not syncing";

/// What others have of a VM. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VmHandle {
    pub(crate) facts: Arc<VmBooted>,
    pub(crate) guest: Guest,
    pub(crate) console: ConsoleLog,
    arrived: Instant,
    ends: mpsc::Sender<EndCommand>,
}

impl std::fmt::Debug for VmHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmHandle").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// The order to end a VM.
struct EndCommand {
    reason: EndReason,
    request_id: String,
    done: oneshot::Sender<Result<(), Error>>,
}

/// A VM that was booted and is not yet recorded.
pub(crate) struct BootedVm {
    pub(crate) facts: VmBooted,
    pub(crate) guest: Guest,
    pub(crate) console: ConsoleLog,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) pidfd: OwnedFd,
    pub(crate) arrived: Instant,
    pub(crate) reservation: Reservation,
}

/// What a VM's task needs of the swarm.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) keeper: ServerEnd,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
}

impl VmHandle {
    /// Its record now.
    pub(crate) fn record(&self) -> Vm {
        record(&self.facts, self.arrived)
    }

    /// Ends it, and waits until nothing of it is left and its end is on record.
    pub(crate) async fn end(&self, reason: EndReason, request_id: &str) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let command = EndCommand { reason, request_id: request_id.to_owned(), done };
        let gone = || Error::from(Failure::unknown_vm(self.facts.id));
        self.ends.send(command).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The record of a VM that was booted by a request that arrived then.
pub(crate) fn record(facts: &VmBooted, arrived: Instant) -> Vm {
    Vm {
        pid: facts.pid,
        id: facts.id,
        ip: facts.ip.clone(),
        uptime: arrived.elapsed().as_secs_f64(),
        state: VmState::Running,
        template: facts.template.clone(),
        started_at: facts.started_at,
        expires_at: facts.expires_at,
        vcpus: facts.vcpus,
        memory_mb: facts.memory_mb,
        metadata: facts.metadata.clone(),
        ticket: None,
        boot: facts.boot,
    }
}

/// Gives a VM its task and its place among those that live.
pub(crate) fn settle_in(vm: BootedVm, surroundings: Surroundings) {
    let (ends, commands) = mpsc::channel(16);
    let facts = Arc::new(vm.facts);
    surroundings.registry.insert(VmHandle {
        facts: facts.clone(),
        guest: vm.guest,
        console: vm.console.clone(),
        arrived: vm.arrived,
        ends,
    });
    let life = Life {
        facts,
        console: vm.console,
        machine: vm.machine,
        surroundings,
        commands,
        _reservation: vm.reservation,
    };
    tokio::spawn(life.run(vm.pidfd));
}

/// The task that owns a VM.
struct Life {
    facts: Arc<VmBooted>,
    console: ConsoleLog,
    machine: Box<dyn Machine>,
    surroundings: Surroundings,
    commands: mpsc::Receiver<EndCommand>,
    _reservation: Reservation,
}

impl Life {
    async fn run(mut self, pidfd: OwnedFd) {
        let expiry = time_left(self.facts.expires_at);
        let (reason, command) = tokio::select! {
            Some(command) = self.commands.recv() => (Some(command.reason), Some(command)),
            () = exited(pidfd) => (None, None),
            () = tokio::time::sleep(expiry.unwrap_or_default()), if expiry.is_some() => (Some(EndReason::Expired), None),
        };
        let request_id = command.as_ref().map(|command| command.request_id.clone());
        let outcome = self.finish(reason, request_id).await;
        if let Err(error) = &outcome {
            tracing::error!(vm = %self.facts.id, %error, "the end of VM {} is not on record", self.facts.id);
        }
        self.surroundings.registry.remove(self.facts.id);
        self.commands.close();
        if let Some(command) = command {
            // The caller may have gone away; the VM is gone all the same.
            let _ = command.done.send(outcome);
        }
        while let Ok(late) = self.commands.try_recv() {
            let _ = late.done.send(Ok(()));
        }
    }

    async fn finish(&self, asked: Option<EndReason>, request_id: Option<String>) -> Result<(), Error> {
        let own_word = match asked {
            Some(_) => None,
            None => timeout(LAST_WORD, self.machine.ended()).await.unwrap_or(None),
        };
        let out_of_memory = self.surroundings.keeper.end(self.facts.id).await?;
        let reason = asked.unwrap_or_else(|| self.reason_of(own_word, out_of_memory));
        tracing::info!(vm = %self.facts.id, pid = self.facts.pid, reason = reason.as_str(), "VM {} ended", self.facts.id);
        let end = RecordEnd { vm: self.facts.id, reason, at: Timestamp::now(), request_id };
        self.surroundings.store.record_end(end).await?;
        Ok(())
    }

    fn reason_of(&self, own_word: Option<VmmEnd>, out_of_memory: bool) -> EndReason {
        match own_word {
            _ if out_of_memory => EndReason::OutOfMemory,
            // A panic ends in a reset, as a wanted reboot does; only the console tells them apart.
            Some(VmmEnd::Poweroff) if !self.console.read().console.contains(PANIC) => EndReason::Poweroff,
            _ => EndReason::Crashed,
        }
    }
}

fn time_left(expires_at: Option<Timestamp>) -> Option<Duration> {
    let left = expires_at?.duration_since(Timestamp::now());
    Some(Duration::try_from(left).unwrap_or_default())
}

/// A pidfd becomes readable when its process is gone.
async fn exited(pidfd: OwnedFd) {
    // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives, and lives as long as the registration.
    match unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) } {
        Ok(pidfd) => drop(pidfd.readable().await),
        // Without the notice an end is only seen when somebody asks for it.
        Err(error) => {
            tracing::error!(%error, "a VMM's process cannot be watched");
            std::future::pending::<()>().await;
        }
    }
}
