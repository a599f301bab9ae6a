//! The task that owns a live VM.

use std::{
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::{
    egress::EgressPolicy,
    swarm::{EndReason, PausedBy, PausedTo, ResumedBy},
};
use skep_keeper_protocol::VmEgress;
use skep_store::{ChangeVm, Pause, PauseChange, RecordPause, VmAttributes, VmBooted, VmChange};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
    time::{sleep_until, timeout},
};

use super::{
    Activity, Live, OnDisk, Paused, RecordedVm, Running, VmContext, VmHandle,
    current_vmm::{CurrentVmm, VmmProcess},
    ending::{Cause, Ending},
    handle::{ChangeCommand, Command, GuestAccess, OtherCommand, ResumeOrder, StateCommand, not_on_disk},
    relay_log::RelayLog,
};
use crate::{
    Error,
    budget::Reservation,
    console::ConsoleLog,
    disk_traffic::DiskMeter,
    end_reason::{EndReasonReceiver, VmEnding},
};

/// How long a VMM may take to exit after the connection to its agent broke: its sockets close first.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Spawns the task of a VM and registers the VM.
pub(crate) fn spawn_vm_task(vm: RecordedVm, context: VmContext) -> VmHandle {
    let (command_sender, commands) = mpsc::channel(16);
    let facts = Arc::new(vm.facts);
    let (attributes, attributes_receiver) = watch::channel(facts.attributes.clone());
    let (access, access_receiver) = watch::channel(GuestAccess::of(&vm.state));
    let (ended, ending) = EndReasonReceiver::channel();
    let disk = DiskMeter::new(vm.state.machine(), vm.counted_traffic, context.disk_totals.clone());
    let snapshot = match &vm.state {
        Live::OnDisk(on_disk) => Some(on_disk.snapshot),
        Live::Running(_) | Live::Paused(_) => None,
    };
    let process = VmmProcess { pid: facts.pid, resumed_at: vm.resumed_at };
    let handle = VmHandle {
        facts: facts.clone(),
        console: vm.console.clone(),
        ending,
        disk: disk.clone(),
        activity: Activity::new(),
        relay_log: RelayLog::default(),
        command_over: watch::Sender::new(false),
        end_requested: watch::Sender::new(false),
        arrived: vm.arrived,
        attributes: attributes_receiver,
        access: access_receiver,
        vmm: Arc::new(CurrentVmm::new(process, snapshot)),
        commands: command_sender,
    };
    context.registry.insert(handle.clone());
    let task = VmTask {
        deadline: vm.deadline,
        reservation: vm.reservation,
        exit: vm.pidfd.map(|pidfd| -> Exit { Box::pin(exited(pidfd)) }),
        handle: handle.clone(),
        facts,
        console: vm.console,
        disk,
        context,
        attributes,
        access,
        ended,
        commands,
    };
    let state = vm.state;
    tokio::spawn(async move {
        let (task, ending) = task.live(state).await;
        ending.finish(task).await;
    });
    handle
}

/// Waits for the end of a VMM's process.
pub(super) type Exit = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// What the task has in every state.
pub(super) struct VmTask {
    pub(super) handle: VmHandle,
    /// `None` if the VM is on disk, like `exit`.
    pub(super) reservation: Option<Reservation>,
    pub(super) exit: Option<Exit>,
    pub(super) facts: Arc<VmBooted>,
    pub(super) console: ConsoleLog,
    pub(super) disk: DiskMeter,
    pub(super) context: VmContext,
    pub(super) attributes: watch::Sender<VmAttributes>,
    pub(super) access: watch::Sender<GuestAccess>,
    /// Gets the reason of the end.
    pub(super) ended: watch::Sender<Option<VmEnding>>,
    /// When it expires, by the monotonic clock.
    deadline: Option<Instant>,
    pub(super) commands: mpsc::Receiver<Command>,
}

impl VmTask {
    /// Runs the commands until the VM must end.
    async fn live(mut self, mut state: Live) -> (Self, Ending) {
        let cause = loop {
            let deadline = self.deadline;
            let command = tokio::select! {
                Some(command) = self.commands.recv() => command,
                () = exit_of(&mut self.exit) => break Cause::Exited,
                () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    break Cause::Reason(EndReason::Expired);
                }
                () = state.agent_closed() => match timeout(EXIT_TIMEOUT, exit_of(&mut self.exit)).await {
                    Ok(()) => break Cause::Exited,
                    Err(_) => {
                        tracing::warn!(vm = %self.facts.id, "VM {} is ended: its agent is disconnected", self.facts.id);
                        break Cause::Reason(EndReason::Failed);
                    }
                },
            };
            state = match command {
                // Only the check of each second waits for its answer, and it looks at the VM again.
                command if self.is_outdated(&command) => state,
                Command::End(command) => break Cause::Command(command),
                Command::Other(command) => self.run(state, *command).await,
            };
        };
        (self, Ending { state, cause })
    }

    async fn run(&mut self, state: Live, command: OtherCommand) -> Live {
        match command {
            OtherCommand::Change(command) => {
                self.change(command).await;
                state
            }
            OtherCommand::Pause(command, Pause { to: PausedTo::Memory, by }) => {
                self.pause(state, command, by).await
            }
            OtherCommand::Pause(command, Pause { to: PausedTo::Disk, by }) => {
                self.pause_to_disk(state, command, by).await
            }
            OtherCommand::Resume(command, order) => self.resume(state, command, order).await,
            OtherCommand::Copy(command) => {
                self.copy(&state, command).await;
                state
            }
        }
    }

    async fn change(&mut self, command: ChangeCommand) {
        let VmChange { idle_timeout_ms, on_idle, .. } = &command.change.change;
        if idle_timeout_ms.is_some() || on_idle.is_some() {
            // Before the check of each second sees the new rule, which is not meant for the time before it.
            self.handle.activity.touch();
        }
        let changed = self.change_all_or_nothing(command.change).await;
        // Fails only if the caller is gone.
        let _ = command.done.send(changed);
    }

    /// Changes the policy of connections and the record in the store, then the attributes that readers see.
    ///
    /// A policy that allows less is applied before it is recorded, and any other one afterwards: if the server ends in
    /// between, the VM reaches no more than its record allows. A step that fails undoes the one before it.
    async fn change_all_or_nothing(&mut self, change: ChangeVm) -> Result<(), Error> {
        let before = self.attributes.borrow().clone();
        let policy = change.change.egress.clone();
        let (first, last) = match policy {
            Some(policy) if policy.is_within(&before.egress) => (Some(policy), None),
            policy => (None, policy),
        };
        // A VM on disk gets the policy on record when it is resumed.
        let (first, last) = if self.exit.is_some() { (first, last) } else { (None, None) };
        if let Some(policy) = &first {
            self.set_egress(policy.clone()).await?;
        }
        let undo = ChangeVm { change: undo(&change.change, &before), ..change.clone() };
        let record = match self.context.store.change_vm(change).await {
            Ok(record) => record,
            Err(error) => {
                if first.is_some() {
                    self.restore_policy(before.egress).await;
                }
                return Err(error.into());
            }
        };
        if let Some(policy) = last
            && let Err(error) = self.set_egress(policy).await
        {
            match self.context.store.change_vm(undo).await {
                Ok(record) => self.publish(record.vm.attributes),
                Err(undo_error) => {
                    let vm = self.facts.id;
                    tracing::error!(%vm, %undo_error, "VM {vm} has another egress policy than its record: {undo_error}");
                    self.publish(record.vm.attributes);
                }
            }
            return Err(error);
        }
        self.publish(record.vm.attributes);
        Ok(())
    }

    async fn set_egress(&self, policy: EgressPolicy) -> Result<(), Error> {
        let egress = VmEgress::new(self.facts.account, policy);
        Ok(self.context.keeper.set_egress(self.facts.id, egress).await?)
    }

    async fn restore_policy(&self, policy: EgressPolicy) {
        let vm = self.facts.id;
        if let Err(error) = self.set_egress(policy).await {
            tracing::error!(%vm, %error, "VM {vm} has a narrower egress policy than its record: {error}");
        }
    }

    /// Shows readers the attributes on record, and sets the expiry if it has changed.
    fn publish(&mut self, attributes: VmAttributes) {
        let before = self.attributes.send_replace(attributes.clone());
        if before.expires_at != attributes.expires_at {
            self.deadline = deadline(attributes.expires_at);
        }
    }

    async fn pause(&self, state: Live, command: StateCommand, by: PausedBy) -> Live {
        let (state, outcome) = match state {
            // The reason is recorded even if it is the same: a pause whose failure could not be undone is not on record yet.
            Live::Paused(_) | Live::OnDisk(_) => self.record_reason(state, &command, by).await,
            Live::Running(running) => match running.pause(by).await {
                Ok(paused) => {
                    tracing::debug!(vm = %self.facts.id, "the processors of VM {} are stopped", self.facts.id);
                    self.record_paused(paused, &command).await
                }
                Err((running, error)) => {
                    self.show(GuestAccess::Running(running.guest.clone()));
                    (Live::Running(running), Err(error))
                }
            },
        };
        self.answer("paused", command, outcome);
        state
    }

    async fn resume(&mut self, state: Live, command: StateCommand, order: ResumeOrder) -> Live {
        let by = order.by;
        let (state, outcome) = match state {
            Live::OnDisk(on_disk) => self.resume_from_disk(on_disk, &command, order).await,
            // It was resumed meanwhile.
            state if order.disk.is_some() => (state, Err(not_on_disk(self.facts.id).into())),
            Live::Running(_) => {
                self.handle.activity.touch();
                (state, self.record(PauseChange::Runs { by }, &command).await)
            }
            Live::Paused(paused) => {
                let before = paused.by;
                match paused.resume(&self.context.keeper, self.facts.id).await {
                    Ok(running) => self.record_running(running, before, &command, by).await,
                    Err((paused, error)) => (Live::Paused(paused), Err(error)),
                }
            }
        };
        self.answer("resumed", command, outcome);
        state
    }

    /// Records what paused a VM that is paused already. A VM that a request paused stays so.
    pub(super) async fn record_reason(
        &self,
        mut state: Live,
        command: &StateCommand,
        by: PausedBy,
    ) -> (Live, Result<(), Error>) {
        let change = match &state {
            Live::Running(_) => return (state, Ok(())),
            Live::Paused(paused) => PauseChange::PausedToMemory { by: by.after(paused.by) },
            Live::OnDisk(OnDisk { snapshot, by: before }) => {
                PauseChange::PausedToDisk { snapshot: *snapshot, by: by.after(*before) }
            }
        };
        let recorded = self.record(change, command).await;
        if let (Ok(()), Some(Pause { by, .. })) = (&recorded, change.pause()) {
            match &mut state {
                Live::Running(_) => {}
                Live::Paused(paused) => paused.by = by,
                Live::OnDisk(on_disk) => on_disk.by = by,
            }
            self.show(GuestAccess::of(&state));
        }
        (state, recorded)
    }

    /// Records a pause, or undoes it.
    async fn record_paused(&self, paused: Paused, command: &StateCommand) -> (Live, Result<(), Error>) {
        // This comes before the record, so that callers who receive its event find the new state.
        let by = paused.by;
        self.show(GuestAccess::Paused(Pause { to: PausedTo::Memory, by }));
        let Err(error) = self.record(PauseChange::PausedToMemory { by }, command).await else {
            tracing::debug!(vm = %self.facts.id, "VM {} is paused on record", self.facts.id);
            return (Live::Paused(paused), Ok(()));
        };
        let state = match paused.resume(&self.context.keeper, self.facts.id).await {
            Ok(running) => Live::Running(running),
            Err((paused, error)) => {
                tracing::error!(vm = %self.facts.id, %error, "VM {} stands still, and runs on record: {error}", self.facts.id);
                Live::Paused(paused)
            }
        };
        self.show(GuestAccess::of(&state));
        (state, Err(error))
    }

    /// Records that a paused VM runs, or pauses it again, for the reason that it was paused for before.
    async fn record_running(
        &self,
        running: Running,
        before: PausedBy,
        command: &StateCommand,
        by: ResumedBy,
    ) -> (Live, Result<(), Error>) {
        self.show(GuestAccess::Running(running.guest.clone()));
        let Err(error) = self.record(PauseChange::Runs { by }, command).await else {
            tracing::debug!(vm = %self.facts.id, "VM {} is resumed on record", self.facts.id);
            return (Live::Running(running), Ok(()));
        };
        let state = self.pause_again(running, before).await;
        self.show(GuestAccess::of(&state));
        (state, Err(error))
    }

    pub(super) async fn record(&self, change: PauseChange, command: &StateCommand) -> Result<(), Error> {
        let record = RecordPause {
            vm: self.facts.id,
            change,
            at: Timestamp::now(),
            request_id: command.request_id.clone(),
        };
        Ok(self.context.store.record_pause(record).await.map(drop)?)
    }

    pub(super) fn answer(&self, what: &str, command: StateCommand, outcome: Result<(), Error>) {
        let vm = self.facts.id;
        match &outcome {
            Ok(()) => tracing::info!(%vm, "VM {vm} is {what}"),
            // `Swarm::resume_by` reserves capacity and tries again.
            Err(Error::NotReserved) => {}
            Err(error) => tracing::warn!(%vm, %error, "VM {vm} is not {what}: {error}"),
        }
        // Fails only if the caller is gone.
        let _ = command.done.send(outcome.map_err(Error::of_transition));
    }
}

/// The change that restores the attributes from before a change.
fn undo(change: &VmChange, before: &VmAttributes) -> VmChange {
    VmChange {
        name: change.name.as_ref().map(|_| before.name.clone()),
        metadata: change.metadata.as_ref().map(|_| before.metadata.clone()),
        expires_at: change.expires_at.map(|_| before.expires_at),
        egress: change.egress.as_ref().map(|_| before.egress.clone()),
        idle_timeout_ms: change.idle_timeout_ms.map(|_| before.idle_timeout_ms),
        on_idle: change.on_idle.map(|_| before.on_idle),
    }
}

/// Converts wall-clock time to the monotonic clock, so that a later change of the wall clock does not move the expiry.
pub(crate) fn deadline(expires_at: Option<Timestamp>) -> Option<Instant> {
    let left = expires_at?.duration_since(Timestamp::now());
    Instant::now().checked_add(Duration::try_from(left).unwrap_or_default())
}

/// Waits until the process of the VMM has ended. Never returns if there is none.
async fn exit_of(exit: &mut Option<Exit>) {
    match exit {
        Some(exit) => exit.await,
        None => std::future::pending().await,
    }
}

/// Waits until a process has ended: its pidfd becomes readable then.
pub(super) async fn exited(pidfd: OwnedFd) {
    // SAFETY: the OwnedFd is moved in, so the descriptor stays open and unchanged as long as the registration exists.
    match unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) } {
        Ok(pidfd) => drop(pidfd.readable().await),
        // Without the registration, the end is only noticed by the broken connection to the agent.
        Err(error) => {
            tracing::error!(%error, "a VMM's process cannot be watched");
            std::future::pending::<()>().await;
        }
    }
}
