//! One VM: the task that owns it, and the handle that others have.

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
use skep_store::{ChangeVm, RecordEnd, Store, VmBooted};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot, watch},
    time::{sleep_until, timeout},
};

use crate::{
    Error, VmChange, budget::Reservation, console::ConsoleLog, ending::Ending, figures::Watcher,
    registry::Registry,
};

/// How long a VMM whose agent cannot be reached any more may take to end by itself: its sockets close first.
const LAST_BREATH: Duration = Duration::from_secs(5);
/// The pause before the keeper or the store is asked again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
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
    pub(crate) ending: Ending,
    /// Whether nobody waits any more for the end of the command that it was booted with.
    command_over: watch::Sender<bool>,
    arrived: Instant,
    /// What may change of it, as it is on record.
    changing: watch::Receiver<Changing>,
    commands: mpsc::Sender<Command>,
}

/// What may change of a VM while it lives.
#[derive(Debug, Clone)]
struct Changing {
    name: Option<VmName>,
    metadata: serde_json::Map<String, serde_json::Value>,
    expires_at: Option<Timestamp>,
}

impl std::fmt::Debug for VmHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmHandle").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// What a VM's task is asked to do.
enum Command {
    End(EndCommand),
    Change(ChangeCommand),
}

/// The order to change what may change.
struct ChangeCommand {
    change: ChangeVm,
    done: oneshot::Sender<Result<(), Error>>,
}

/// The order to end a VM.
struct EndCommand {
    reason: EndReason,
    /// The request that ends it, if one does.
    request_id: Option<String>,
    /// Whether it was this order that ended it.
    done: oneshot::Sender<Result<bool, Error>>,
}

impl ChangeCommand {
    /// For a VM that is ending.
    fn refuse(self) {
        let _ = self.done.send(Err(Failure::unknown_vm(self.change.vm).into()));
    }
}

/// A VM that was booted and is not yet recorded.
pub(crate) struct BootedVm {
    pub(crate) facts: VmBooted,
    pub(crate) guest: Guest,
    pub(crate) console: ConsoleLog,
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) pidfd: OwnedFd,
    pub(crate) arrived: Instant,
    /// When its time is over, by a clock that nobody sets.
    pub(crate) deadline: Option<Instant>,
    pub(crate) reservation: Reservation,
}

/// What a VM's task needs of the swarm.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) keeper: ServerEnd,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) observer: Watcher,
}

impl VmHandle {
    /// Its record now.
    pub(crate) fn record(&self) -> Vm {
        let changing = self.changing.borrow().clone();
        Vm {
            name: changing.name,
            metadata: changing.metadata,
            expires_at: changing.expires_at,
            ..record(&self.facts, self.arrived)
        }
    }

    /// Whether it has this name now.
    pub(crate) fn is_named(&self, name: &VmName) -> bool {
        self.changing.borrow().name.as_ref() == Some(name)
    }

    /// Whether its processors run.
    #[expect(clippy::unused_self, reason = "every VM runs, for now")]
    pub(crate) fn state(&self) -> VmState {
        VmState::Running
    }

    /// Changes what may change, and answers the record.
    pub(crate) async fn change(&self, change: VmChange, request_id: &str) -> Result<Vm, Error> {
        let (done, answer) = oneshot::channel();
        let VmChange { name, metadata, expires_at } = change;
        let change = ChangeVm {
            vm: self.facts.id,
            name,
            metadata,
            expires_at,
            at: Timestamp::now(),
            request_id: Some(request_id.to_owned()),
        };
        self.order(Command::Change(ChangeCommand { change, done })).await?;
        answer.await.map_err(|_| self.gone())??;
        Ok(self.record())
    }

    /// Ends it, and waits until nothing of it is left and its end is on record. `false` where it was ending already.
    pub(crate) async fn end(&self, reason: EndReason, request_id: Option<&str>) -> Result<bool, Error> {
        let (done, answer) = oneshot::channel();
        let command = EndCommand { reason, request_id: request_id.map(str::to_owned), done };
        self.order(Command::End(command)).await?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Notes that nobody waits any more for the end of the command that it was booted with.
    pub(crate) fn command_is_over(&self) {
        self.command_over.send_replace(true);
    }

    /// Waits until the end of the command that it was booted with is on record, where it was booted with one.
    pub(crate) async fn command_over(&self) {
        if self.facts.exec_id.is_some() {
            // The sender lives as long as `self`, so this never fails.
            let _ = self.command_over.subscribe().wait_for(|over| *over).await;
        }
    }

    async fn order(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).await.map_err(|_| self.gone())
    }

    fn gone(&self) -> Error {
        Failure::unknown_vm(self.facts.id).into()
    }
}

/// The record of a VM that was booted by a request that arrived then.
pub(crate) fn record(facts: &VmBooted, arrived: Instant) -> Vm {
    Vm {
        pid: facts.pid,
        id: facts.id,
        name: facts.name.clone(),
        ip: facts.ip.clone(),
        uptime: arrived.elapsed().as_secs_f64(),
        state: VmState::Running,
        template: facts.template.clone(),
        started_at: facts.started_at,
        expires_at: facts.expires_at,
        vcpus: facts.vcpus,
        memory_mb: facts.memory_mb,
        metadata: facts.metadata.clone(),
        ticket: facts.ticket,
        exec_id: facts.exec_id.clone(),
        boot: facts.boot,
        ended_at: None,
        reason: None,
    }
}

/// Gives a VM its task and its place among those that live.
pub(crate) fn settle_in(vm: BootedVm, surroundings: Surroundings) -> VmHandle {
    let (orders, commands) = mpsc::channel(16);
    let facts = Arc::new(vm.facts);
    let (changes, changing) = watch::channel(Changing {
        name: facts.name.clone(),
        metadata: facts.metadata.clone(),
        expires_at: facts.expires_at,
    });
    let (ended, ending) = Ending::channel();
    let handle = VmHandle {
        facts: facts.clone(),
        guest: vm.guest.clone(),
        console: vm.console.clone(),
        ending,
        command_over: watch::Sender::new(false),
        arrived: vm.arrived,
        changing,
        commands: orders,
    };
    surroundings.registry.insert(handle.clone());
    let life = Life {
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
    tokio::spawn(life.run(vm.pidfd, vm.reservation));
    handle
}

/// The task that owns a VM.
struct Life {
    facts: Arc<VmBooted>,
    guest: Guest,
    console: ConsoleLog,
    machine: Box<dyn Machine>,
    surroundings: Surroundings,
    changes: watch::Sender<Changing>,
    /// Takes the reason of its end.
    ended: watch::Sender<Option<EndReason>>,
    /// When its time is over, by a clock that nobody sets.
    deadline: Option<Instant>,
    commands: mpsc::Receiver<Command>,
}

impl Life {
    async fn run(mut self, pidfd: OwnedFd, reservation: Reservation) {
        let (asked, mut command) = self.cause_of_end(pidfd).await;
        let request_id = command.as_ref().and_then(|command| command.request_id.clone());
        let own_word = match asked {
            Some(_) => None,
            None => timeout(LAST_WORD, self.machine.ended()).await.unwrap_or(None),
        };
        let out_of_memory = self.clear_away(&mut command).await;
        let reason = asked.unwrap_or_else(|| self.reason_of(own_word, out_of_memory));
        tracing::info!(vm = %self.facts.id, pid = self.facts.pid, reason = reason.as_str(), "VM {} ended", self.facts.id);
        let end = RecordEnd { vm: self.facts.id, reason, at: Timestamp::now(), request_id };
        let recorded = self.surroundings.store.record_end(end.clone()).await;
        let Self { surroundings, ended, mut commands, .. } = self;
        surroundings.registry.remove(end.vm);
        // After that, so that a caller who reads the reason finds the VM no more.
        ended.send_replace(Some(reason));
        surroundings.observer.ended(reason);
        drop(reservation);
        commands.close();
        let outcome = recorded.clone().map(|_| ()).map_err(Error::from);
        if let Some(command) = command {
            // The caller may have gone away; the VM is gone all the same.
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
            record_later(surroundings.store, end, error).await;
        }
    }

    /// Waits until it has to end. Who asks for it gives the reason; without one, the VMM's process ended.
    async fn cause_of_end(&mut self, pidfd: OwnedFd) -> (Option<EndReason>, Option<EndCommand>) {
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
                () = self.guest.closed() => return match timeout(LAST_BREATH, exited).await {
                    Ok(()) => (None, None),
                    Err(_) => {
                        tracing::warn!(vm = %self.facts.id, "the agent of VM {} is lost, so it is ended", self.facts.id);
                        (Some(EndReason::Failed), None)
                    }
                },
            }
        }
    }

    /// First on record, then for whoever looks.
    async fn change(&mut self, command: ChangeCommand) {
        let timed = command.change.expires_at.is_some();
        let changed = self.surroundings.store.change_vm(command.change).await.map(|record| {
            let VmBooted { name, metadata, expires_at, .. } = record.vm;
            if timed {
                self.deadline = deadline(expires_at);
            }
            self.changes.send_replace(Changing { name, metadata, expires_at });
        });
        // The caller may have gone away; it is changed all the same.
        let _ = command.done.send(changed.map_err(Error::from));
    }

    /// Has the keeper clear it away, and tells whether the kernel killed it for memory. While the keeper cannot, the VM
    /// keeps its place: it is listed and counted, and whoever wants it ended is told why it is still there.
    async fn clear_away(&mut self, command: &mut Option<EndCommand>) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.surroundings.keeper.end(self.facts.id).await {
                Ok(out_of_memory) => return out_of_memory,
                // Nothing of it is left.
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
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
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

/// A VM that is gone but alive on record would keep its keys, so the store is asked until it answers.
async fn record_later(store: Arc<dyn Store>, end: RecordEnd, mut error: skep_store::Error) {
    let mut pause = FIRST_PAUSE;
    while error.code() != ErrorCode::UnknownVm {
        tracing::error!(vm = %end.vm, %error, "the end of VM {} is not on record yet", end.vm);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        match store.record_end(end.clone()).await {
            Ok(_) => return,
            Err(again) => error = again,
        }
    }
}

/// The wall clock is asked once: set by an hour later on, it makes no VM live longer or shorter.
pub(crate) fn deadline(expires_at: Option<Timestamp>) -> Option<Instant> {
    let left = expires_at?.duration_since(Timestamp::now());
    Instant::now().checked_add(Duration::try_from(left).unwrap_or_default())
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
