//! The handle to a VM's task, and the commands that the task takes.

use std::{sync::Arc, time::Instant};

use jiff::Timestamp;
use skep_api::{
    Failure, TemplateId, VmName,
    swarm::{EndReason, PausedTo, Vm, VmState},
};
use skep_channel::Guest;
use skep_store::{ChangeVm, VmAttributes, VmBooted, VmChange};
use tokio::sync::{mpsc, oneshot, watch};

use super::{CopyPurpose, Live, Paused};
use crate::{Error, console::ConsoleLog, disk_traffic::DiskMeter, end_reason::EndReasonReceiver};

/// A handle to a VM's task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VmHandle {
    pub(crate) facts: Arc<VmBooted>,
    pub(crate) console: ConsoleLog,
    pub(crate) ending: EndReasonReceiver,
    pub(crate) disk: DiskMeter,
    /// Whether the end of the command of the boot is recorded, or is not awaited.
    pub(super) command_over: watch::Sender<bool>,
    pub(super) arrived: Instant,
    /// The mutable attributes, as recorded.
    pub(super) attributes: watch::Receiver<VmAttributes>,
    pub(super) access: watch::Receiver<GuestAccess>,
    pub(super) commands: mpsc::Sender<Command>,
}

/// The connection to the guest, which callers have only while the VM runs.
#[derive(Debug, Clone)]
pub(super) enum GuestAccess {
    Running(Guest),
    Paused(PausedTo),
}

/// A command to a VM's task.
pub(super) enum Command {
    End(EndCommand),
    Other(OtherCommand),
}

/// A command that only a live VM takes.
pub(super) enum OtherCommand {
    Change(ChangeCommand),
    Pause(StateCommand),
    Resume(StateCommand),
    Copy(CopyCommand),
}

pub(super) struct EndCommand {
    pub(super) reason: EndReason,
    /// The API request that ends it, if any.
    pub(super) request_id: Option<String>,
    /// Gets whether this command ended the VM, rather than an earlier cause.
    pub(super) done: oneshot::Sender<Result<bool, Error>>,
}

pub(super) struct ChangeCommand {
    pub(super) change: ChangeVm,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct StateCommand {
    pub(super) request_id: String,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct CopyCommand {
    /// The id of the capture.
    pub(super) capture: TemplateId,
    pub(super) purpose: CopyPurpose,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

impl std::fmt::Debug for VmHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmHandle").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl GuestAccess {
    pub(super) fn of(state: &Live) -> Self {
        match state {
            Live::Running(vm) => Self::Running(vm.guest.clone()),
            Live::Paused(_) => Self::Paused(Paused::TO),
        }
    }
}

impl OtherCommand {
    /// Fails the command, because the VM is ending.
    pub(super) fn refuse(self, vm: &VmBooted) {
        let done = match self {
            Self::Change(ChangeCommand { done, .. }) | Self::Copy(CopyCommand { done, .. }) => done,
            Self::Pause(command) | Self::Resume(command) => command.done,
        };
        let _ = done.send(Err(Failure::unknown_vm(vm.id).into()));
    }
}

impl VmHandle {
    pub(crate) fn record(&self) -> Vm {
        self.record_as(self.paused_to())
    }

    pub(crate) fn is_named(&self, name: &VmName) -> bool {
        self.attributes.borrow().name.as_ref() == Some(name)
    }

    pub(crate) fn state(&self) -> VmState {
        if self.paused_to().is_some() { VmState::Paused } else { VmState::Running }
    }

    /// The connection to the guest.
    ///
    /// # Errors
    /// `vm_paused`.
    pub(crate) fn guest(&self) -> Result<Guest, Failure> {
        match &*self.access.borrow() {
            GuestAccess::Running(guest) => Ok(guest.clone()),
            GuestAccess::Paused(_) => Err(Failure::vm_paused(self.facts.id)),
        }
    }

    /// Waits until the VM runs, and returns the connection to the guest. `None` if the VM ended.
    pub(crate) async fn running_guest(&self) -> Option<Guest> {
        let mut access = self.access.clone();
        let access = access.wait_for(|access| matches!(access, GuestAccess::Running(_))).await.ok()?;
        match &*access {
            GuestAccess::Running(guest) => Some(guest.clone()),
            GuestAccess::Paused(_) => None,
        }
    }

    /// Changes attributes and returns the new record.
    pub(crate) async fn change(&self, change: VmChange, request_id: &str) -> Result<Vm, Error> {
        let change = ChangeVm {
            vm: self.facts.id,
            change,
            at: Timestamp::now(),
            request_id: Some(request_id.to_owned()),
        };
        self.run(|done| OtherCommand::Change(ChangeCommand { change, done })).await?;
        Ok(self.record())
    }

    /// Pauses the VM and returns its record. Has no effect on a paused one.
    pub(crate) async fn pause(&self, request_id: &str) -> Result<Vm, Error> {
        let request_id = request_id.to_owned();
        self.run(|done| OtherCommand::Pause(StateCommand { request_id, done })).await?;
        // A later request may have changed the state again.
        Ok(self.record_as(Some(Paused::TO)))
    }

    /// Resumes the VM and returns its record. Has no effect on a running one.
    pub(crate) async fn resume(&self, request_id: &str) -> Result<Vm, Error> {
        let request_id = request_id.to_owned();
        self.run(|done| OtherCommand::Resume(StateCommand { request_id, done })).await?;
        Ok(self.record_as(None))
    }

    /// Copies the VM into a capture of the keeper with this id. The caller must free it.
    pub(crate) async fn copy(&self, capture: TemplateId, purpose: CopyPurpose) -> Result<(), Error> {
        self.run(|done| OtherCommand::Copy(CopyCommand { capture, purpose, done })).await
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

    fn paused_to(&self) -> Option<PausedTo> {
        match &*self.access.borrow() {
            GuestAccess::Running(_) => None,
            GuestAccess::Paused(to) => Some(*to),
        }
    }

    fn record_as(&self, paused_to: Option<PausedTo>) -> Vm {
        let attributes = self.attributes.borrow().clone();
        self.facts.to_api(attributes, paused_to, self.arrived.elapsed().as_secs_f64())
    }

    async fn run(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> OtherCommand,
    ) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        self.send_command(Command::Other(command(done))).await?;
        answer.await.map_err(|_| self.unknown_vm())?
    }

    async fn send_command(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).await.map_err(|_| self.unknown_vm())
    }

    fn unknown_vm(&self) -> Error {
        Failure::unknown_vm(self.facts.id).into()
    }
}
