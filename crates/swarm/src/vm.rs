//! One VM: the task that owns it, and the handle to that task.

use std::{
    os::fd::OwnedFd,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::{
    ErrorCode, Failure, VmName,
    swarm::{EndReason, Vm, VmState},
};
use skep_channel::Guest;
use skep_engine::{Machine, VmmEnd};
use skep_keeper_protocol::ServerEnd;
use skep_store::{ChangeVm, RecordEnd, VmAttributes, VmBooted, VmChange, VmStore};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot, watch},
    time::{sleep_until, timeout},
};

use crate::{
    Error, budget::Reservation, console::ConsoleLog, end_reason::EndReasonReceiver, metrics::SharedObserver,
    registry::Registry,
};

/// How long to wait for a VMM to exit after the connection to its agent broke: the sockets of an exiting VMM close
/// first.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Back-off between attempts at the keeper or the store. Doubles up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long to wait for the shutdown event of a VMM that exited. It is already in the monitor's socket then.
const SHUTDOWN_EVENT_TIMEOUT: Duration = Duration::from_millis(500);
/// The message of a guest kernel's panic on the serial console.
const PANIC_MESSAGE: &str = "Kernel panic - not syncing";

/// A handle to a VM's task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VmHandle {
    pub(crate) facts: Arc<VmBooted>,
    pub(crate) guest: Guest,
    pub(crate) console: ConsoleLog,
    pub(crate) ending: EndReasonReceiver,
    /// Whether the end of the command of the boot is recorded, or is not awaited.
    command_over: watch::Sender<bool>,
    arrived: Instant,
    /// The mutable attributes, as recorded.
    attributes: watch::Receiver<VmAttributes>,
    commands: mpsc::Sender<Command>,
}

impl std::fmt::Debug for VmHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmHandle").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// A command to a VM's task.
enum Command {
    End(EndCommand),
    Change(ChangeCommand),
}

struct ChangeCommand {
    change: ChangeVm,
    done: oneshot::Sender<Result<(), Error>>,
}

struct EndCommand {
    reason: EndReason,
    /// The API request that ends it, if any.
    request_id: Option<String>,
    /// Gets whether this command ended the VM, rather than an earlier cause.
    done: oneshot::Sender<Result<bool, Error>>,
}

impl ChangeCommand {
    /// Fails the command, because the VM is ending.
    fn refuse(self) {
        let _ = self.done.send(Err(Failure::unknown_vm(self.change.vm).into()));
    }
}

/// A booted VM that is not recorded yet.
pub(crate) struct BootedVm {
    pub(crate) facts: VmBooted,
    pub(crate) guest: Guest,
    pub(crate) console: ConsoleLog,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) pidfd: OwnedFd,
    pub(crate) arrived: Instant,
    /// When it expires, by the monotonic clock.
    pub(crate) deadline: Option<Instant>,
    pub(crate) reservation: Reservation,
}

/// The dependencies of a VM's task.
#[derive(Clone)]
pub(crate) struct VmContext {
    pub(crate) keeper: ServerEnd,
    pub(crate) store: Arc<dyn VmStore>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) observer: SharedObserver,
}

impl VmHandle {
    pub(crate) fn record(&self) -> Vm {
        self.facts.to_api(self.attributes.borrow().clone(), self.arrived.elapsed().as_secs_f64())
    }

    pub(crate) fn is_named(&self, name: &VmName) -> bool {
        self.attributes.borrow().name.as_ref() == Some(name)
    }

    #[expect(clippy::unused_self, reason = "every VM runs, for now")]
    pub(crate) fn state(&self) -> VmState {
        VmState::Running
    }

    /// Changes attributes and returns the new record.
    pub(crate) async fn change(&self, change: VmChange, request_id: &str) -> Result<Vm, Error> {
        let (done, answer) = oneshot::channel();
        let change = ChangeVm {
            vm: self.facts.id,
            change,
            at: Timestamp::now(),
            request_id: Some(request_id.to_owned()),
        };
        self.send_command(Command::Change(ChangeCommand { change, done })).await?;
        answer.await.map_err(|_| self.unknown_vm())??;
        Ok(self.record())
    }

    /// Ends the VM, and waits until its resources are removed and its end is recorded. `false` if it was already
    /// ending.
    pub(crate) async fn end(&self, reason: EndReason, request_id: Option<&str>) -> Result<bool, Error> {
        let (done, answer) = oneshot::channel();
        let command = EndCommand { reason, request_id: request_id.map(str::to_owned), done };
        self.send_command(Command::End(command)).await?;
        answer.await.map_err(|_| self.unknown_vm())?
    }

    /// Marks the command of the boot as ended and recorded, or as not awaited.
    pub(crate) fn mark_command_over(&self) {
        self.command_over.send_replace(true);
    }

    /// Waits until the end of the command of the boot is recorded. Returns at once if there is none.
    pub(crate) async fn command_over(&self) {
        if self.facts.exec_id.is_some() {
            // The sender lives as long as `self`, so this never fails.
            let _ = self.command_over.subscribe().wait_for(|over| *over).await;
        }
    }

    async fn send_command(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).await.map_err(|_| self.unknown_vm())
    }

    fn unknown_vm(&self) -> Error {
        Failure::unknown_vm(self.facts.id).into()
    }
}

impl BootedVm {
    /// The record of the VM at its boot.
    pub(crate) fn record(&self) -> Vm {
        self.facts.to_api(self.facts.attributes.clone(), self.arrived.elapsed().as_secs_f64())
    }
}

/// Spawns the task of a VM and registers the VM.
pub(crate) fn spawn_vm_task(vm: BootedVm, surroundings: VmContext) -> VmHandle {
    let (command_sender, commands) = mpsc::channel(16);
    let facts = Arc::new(vm.facts);
    let (changes, changing) = watch::channel(facts.attributes.clone());
    let (ended, ending) = EndReasonReceiver::channel();
    let handle = VmHandle {
        facts: facts.clone(),
        guest: vm.guest.clone(),
        console: vm.console.clone(),
        ending,
        command_over: watch::Sender::new(false),
        arrived: vm.arrived,
        attributes: changing,
        commands: command_sender,
    };
    surroundings.registry.insert(handle.clone());
    let task = VmTask {
        deadline: vm.deadline,
        facts,
        guest: vm.guest,
        console: vm.console,
        machine: vm.machine,
        surroundings,
        changes,
        ended,
        commands,
    };
    tokio::spawn(task.run(vm.pidfd, vm.reservation));
    handle
}

/// The task that owns a VM.
struct VmTask {
    facts: Arc<VmBooted>,
    guest: Guest,
    console: ConsoleLog,
    machine: Box<dyn Machine>,
    surroundings: VmContext,
    changes: watch::Sender<VmAttributes>,
    /// Gets the reason of the end.
    ended: watch::Sender<Option<EndReason>>,
    /// When it expires, by the monotonic clock.
    deadline: Option<Instant>,
    commands: mpsc::Receiver<Command>,
}

impl VmTask {
    async fn run(mut self, pidfd: OwnedFd, reservation: Reservation) {
        let (given_reason, mut command) = self.wait_for_end(pidfd).await;
        let request_id = command.as_ref().and_then(|command| command.request_id.clone());
        let reported_end = match given_reason {
            Some(_) => None,
            None => timeout(SHUTDOWN_EVENT_TIMEOUT, self.machine.ended()).await.unwrap_or(None),
        };
        let out_of_memory = self.remove_resources(&mut command).await;
        let reason = given_reason.unwrap_or_else(|| self.end_reason(reported_end, out_of_memory));
        tracing::info!(vm = %self.facts.id, pid = self.facts.pid, reason = reason.as_str(), "VM {} ended", self.facts.id);
        let end = RecordEnd { vm: self.facts.id, reason, at: Timestamp::now(), request_id };
        let recorded = self.surroundings.store.record_end(end.clone()).await;
        let Self { surroundings, ended, mut commands, .. } = self;
        surroundings.registry.remove(end.vm);
        // After the removal from the registry, so that a caller who gets the reason does not find the VM any more.
        ended.send_replace(Some(reason));
        surroundings.observer.ended(reason);
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
                Command::Change(late) => late.refuse(),
            }
        }
        if let Err(error) = recorded {
            retry_record_end(surroundings.store, end, error).await;
        }
    }

    /// Waits until the VM must end. Without a reason, the VMM's process ended by itself.
    async fn wait_for_end(&mut self, pidfd: OwnedFd) -> (Option<EndReason>, Option<EndCommand>) {
        let mut exited = pin!(exited(pidfd));
        loop {
            let deadline = self.deadline;
            tokio::select! {
                Some(command) = self.commands.recv() => match command {
                    Command::End(command) => return (Some(command.reason), Some(command)),
                    Command::Change(command) => self.change(command).await,
                },
                () = &mut exited => return (None, None),
                () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    return (Some(EndReason::Expired), None);
                }
                () = self.guest.closed() => return match timeout(EXIT_TIMEOUT, exited).await {
                    Ok(()) => (None, None),
                    Err(_) => {
                        tracing::warn!(vm = %self.facts.id, "VM {} is ended: its agent is disconnected", self.facts.id);
                        (Some(EndReason::Failed), None)
                    }
                },
            }
        }
    }

    /// Changes the record in the store first, then the attributes that readers see.
    async fn change(&mut self, command: ChangeCommand) {
        let timed = command.change.change.expires_at.is_some();
        let changed = self.surroundings.store.change_vm(command.change).await.map(|record| {
            let attributes = record.vm.attributes;
            if timed {
                self.deadline = deadline(attributes.expires_at);
            }
            self.changes.send_replace(attributes);
        });
        // Fails only if the caller is gone.
        let _ = command.done.send(changed.map_err(Error::from));
    }

    /// Lets the keeper remove the VM's resources, and returns whether the kernel killed it for memory. Retries until
    /// that succeeds. Meanwhile the VM stays listed and counted, and requests to end it get the keeper's error.
    async fn remove_resources(&mut self, command: &mut Option<EndCommand>) -> bool {
        let mut pause = INITIAL_BACKOFF;
        loop {
            let error = match self.surroundings.keeper.end(self.facts.id).await {
                Ok(out_of_memory) => return out_of_memory,
                // Its resources are already removed.
                Err(error) if error.code() == ErrorCode::UnknownVm => return false,
                Err(error) => error,
            };
            tracing::error!(vm = %self.facts.id, %error, "VM {} cannot be ended now", self.facts.id);
            if let Some(command) = command.take() {
                let _ = command.done.send(Err(error.into()));
            }
            tokio::select! {
                next = self.commands.recv() => match next {
                    Some(Command::End(next)) => *command = Some(next),
                    Some(Command::Change(change)) => change.refuse(),
                    None => {}
                },
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_BACKOFF),
            }
        }
    }

    fn end_reason(&self, own_word: Option<VmmEnd>, out_of_memory: bool) -> EndReason {
        match own_word {
            _ if out_of_memory => EndReason::OutOfMemory,
            // A panic ends in a reset, as an intended reboot does; only the console distinguishes them.
            Some(VmmEnd::Poweroff) if !self.console.read().console.contains(PANIC_MESSAGE) => {
                EndReason::Poweroff
            }
            _ => EndReason::Crashed,
        }
    }
}

/// Retries until the end is recorded: a VM that is alive on record would keep its API keys.
async fn retry_record_end(store: Arc<dyn VmStore>, end: RecordEnd, mut error: skep_store::Error) {
    let mut pause = INITIAL_BACKOFF;
    while error.code() != ErrorCode::UnknownVm {
        tracing::error!(vm = %end.vm, %error, "the end of VM {} is not on record yet", end.vm);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
        match store.record_end(end.clone()).await {
            Ok(_) => return,
            Err(next_error) => error = next_error,
        }
    }
}

/// Converts wall-clock time to the monotonic clock, so that a later change of the wall clock does not move the expiry.
pub(crate) fn deadline(expires_at: Option<Timestamp>) -> Option<Instant> {
    let left = expires_at?.duration_since(Timestamp::now());
    Instant::now().checked_add(Duration::try_from(left).unwrap_or_default())
}

/// Waits until a process has ended: its pidfd becomes readable then.
async fn exited(pidfd: OwnedFd) {
    // SAFETY: the OwnedFd is moved in, so the descriptor stays open and unchanged as long as the registration exists.
    match unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) } {
        Ok(pidfd) => drop(pidfd.readable().await),
        // Without it, the end is only noticed by the broken connection to the agent.
        Err(error) => {
            tracing::error!(%error, "a VMM's process cannot be watched");
            std::future::pending::<()>().await;
        }
    }
}
