//! The handle to a VM's task, and the commands that the task takes.

use std::{
    mem,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::{
    ErrorCode, Failure, TemplateId, VmId, VmName,
    egress::EgressPolicy,
    swarm::{EndReason, OnIdle, PausedBy, PausedTo, ResumedBy, Vm, VmState},
};
use skep_channel::Guest;
use skep_store::{ChangeVm, Pause, VmAttributes, VmBooted, VmChange};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Activity, CopyPurpose, Live,
    current_vmm::{CurrentVmm, VmmProcess},
    relay_log::RelayLog,
};
use crate::{
    Error, budget::Reservation, captures::CapturePermit, console::ConsoleLog, disk_traffic::DiskMeter,
    end_reason::EndReasonReceiver,
};

/// A handle to a VM's task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct VmHandle {
    pub(crate) facts: Arc<VmBooted>,
    pub(crate) console: ConsoleLog,
    pub(crate) ending: EndReasonReceiver,
    pub(crate) disk: DiskMeter,
    pub(crate) activity: Arc<Activity>,
    pub(crate) relay_log: RelayLog,
    /// Whether the end of the command of the boot is recorded, or is not awaited.
    pub(super) command_over: watch::Sender<bool>,
    /// Whether the task has a command that ends the VM in any case.
    pub(super) end_requested: watch::Sender<bool>,
    pub(super) arrived: Instant,
    /// The mutable attributes, as recorded.
    pub(super) attributes: watch::Receiver<VmAttributes>,
    pub(super) access: watch::Receiver<GuestAccess>,
    pub(super) vmm: Arc<CurrentVmm>,
    pub(super) commands: mpsc::Sender<Command>,
}

/// The connection to the guest, which callers have only while the VM runs.
#[derive(Debug, Clone)]
pub(super) enum GuestAccess {
    Running(Guest),
    Paused(Pause),
}

/// A command to a VM's task.
pub(super) enum Command {
    End(EndCommand),
    Other(Box<OtherCommand>),
}

/// A command that only a live VM takes.
pub(super) enum OtherCommand {
    Change(ChangeCommand),
    Pause(StateCommand, Pause),
    Resume(StateCommand, ResumeOrder),
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
    /// The API request that asks for it, if any.
    pub(super) request_id: Option<String>,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

/// How a VM is resumed.
pub(crate) struct ResumeOrder {
    pub(crate) by: ResumedBy,
    /// Needed if the VM is on disk when its task takes the order.
    pub(crate) reservation: Option<Reservation>,
    /// For a VM on disk that starts without its memory.
    pub(crate) disk: Option<DiskBoot>,
}

/// A guest that was booted from the disk of a VM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskBoot {
    /// The snapshot that the VM was on disk in.
    pub(crate) snapshot: TemplateId,
    /// The template of the keeper that has the guest.
    pub(crate) booted: TemplateId,
}

pub(super) struct CopyCommand {
    /// The id of the capture.
    pub(super) capture: TemplateId,
    pub(super) purpose: CopyPurpose,
    pub(super) done: oneshot::Sender<Result<CapturePermit, Error>>,
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
            Live::Paused(vm) => Self::Paused(Pause { to: PausedTo::Memory, by: vm.by }),
            Live::OnDisk(vm) => Self::Paused(Pause { to: PausedTo::Disk, by: vm.by }),
        }
    }
}

impl OtherCommand {
    /// Fails the command, because the VM is ending.
    pub(super) fn refuse(self, vm: &VmBooted) {
        let error = Failure::unknown_vm(vm.id).into();
        let done = match self {
            Self::Change(ChangeCommand { done, .. }) => done,
            Self::Pause(command, _) | Self::Resume(command, ..) => command.done,
            Self::Copy(CopyCommand { done, .. }) => {
                let _ = done.send(Err(error));
                return;
            }
        };
        let _ = done.send(Err(error));
    }
}

/// The refusal of a start without memory.
pub(super) fn not_on_disk(vm: VmId) -> Failure {
    let message = format!(
        "`memory` is false, and VM {vm} is not paused to disk; leave `memory` out, or pause the VM to disk first"
    );
    Failure::new(ErrorCode::VmNotOnDisk, message)
}

impl VmHandle {
    pub(crate) fn record(&self) -> Vm {
        self.record_as(self.pause_state())
    }

    pub(crate) fn is_named(&self, name: &VmName) -> bool {
        self.attributes.borrow().name.as_ref() == Some(name)
    }

    /// The process id of the VMM, or of the last one while the VM is on disk.
    pub(crate) fn pid(&self) -> u32 {
        self.vmm.lock().process.pid
    }

    /// Whether the VM has a VMM with this process id.
    pub(crate) fn has_pid(&self, pid: u32) -> bool {
        self.pid() == pid && !self.is_on_disk()
    }

    /// Whether the VM had this process id, and no other VM of the account got it since. Only the last ones are known.
    pub(crate) fn had_pid(&self, pid: u32) -> bool {
        self.vmm.lock().had_pid(pid)
    }

    /// The process ids on record that the VM had under earlier servers, oldest first.
    pub(crate) fn set_former_pids(&self, pids: Vec<u32>) {
        self.vmm.lock().set_former_pids(pids);
    }

    /// Makes the process id of the VMM, which is going to end, a former one.
    pub(super) fn retire_pid(&self) {
        self.vmm.lock().retire_pid();
    }

    /// Another VM of the account has this process id now.
    pub(crate) fn forget_pid(&self, pid: u32) {
        self.vmm.lock().forget_pid(pid);
    }

    /// Returns the previous process.
    pub(super) fn replace_process(&self, process: VmmProcess) -> VmmProcess {
        mem::replace(&mut self.vmm.lock().process, process)
    }

    /// The address of the VM.
    ///
    /// # Errors
    /// The record has none that is valid.
    pub(super) fn address(&self) -> Result<Ipv4Addr, Failure> {
        let invalid = |_| Failure::new(ErrorCode::Internal, format!("`{}` is no address", self.facts.ip));
        self.facts.ip.parse().map_err(invalid)
    }

    /// Where the memory of the VM is, if it is paused.
    pub(crate) fn paused_to(&self) -> Option<PausedTo> {
        self.pause_state().map(|pause| pause.to)
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        self.paused_to() == Some(PausedTo::Disk)
    }

    /// Whether the VM is paused, and a call that needs it resumes it.
    pub(crate) fn wakes(&self) -> bool {
        self.pause_state().is_some_and(|pause| pause.by != PausedBy::Request)
    }

    /// Whether the VM keeps its memory in a pause for being idle.
    pub(crate) fn is_idle_in_memory(&self) -> bool {
        self.pause_state() == Some(Pause { to: PausedTo::Memory, by: PausedBy::Idle })
    }

    /// What happens to the VM because it is idle. `None` if it is not, or for not long enough.
    pub(crate) fn due_to_idleness(&self) -> Option<OnIdle> {
        let attributes = self.attributes.borrow();
        let timeout = Duration::from_millis(attributes.idle_timeout_ms?);
        let command_runs = self.facts.exec_id.is_some() && !*self.command_over.borrow();
        let is_due = self.pause_state().is_none() && !command_runs && self.activity.idle_time() >= timeout;
        is_due.then_some(attributes.on_idle)
    }

    pub(crate) fn has_egress(&self) -> bool {
        self.attributes.borrow().egress != EgressPolicy::None
    }

    /// The snapshot that the VM is on disk in.
    ///
    /// # Errors
    /// It is not on disk.
    pub(crate) fn require_on_disk(&self) -> Result<TemplateId, Failure> {
        self.snapshot().filter(|_| self.is_on_disk()).ok_or_else(|| not_on_disk(self.facts.id))
    }

    /// Checks that the VM is not on disk.
    ///
    /// # Errors
    /// `vm_paused`.
    pub(crate) fn require_vmm(&self) -> Result<(), Failure> {
        if self.is_on_disk() { Err(Failure::vm_paused(self.facts.id)) } else { Ok(()) }
    }

    /// The error of a call, with the reason if the VM ended.
    pub(crate) async fn explain(&self, error: skep_channel::Error) -> Error {
        match error {
            // The VMM ended because the VM was paused to disk.
            skep_channel::Error::Ended if self.is_on_disk() => Failure::vm_paused(self.facts.id).into(),
            error => self.ending.explain(error).await,
        }
    }

    pub(crate) fn state(&self) -> VmState {
        if self.pause_state().is_some() { VmState::Paused } else { VmState::Running }
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

    /// Waits until the VM runs, and returns the connection to the guest, which is open. `None` if the VM ended.
    pub(crate) async fn running_guest(&self) -> Option<Guest> {
        let mut access = self.access.clone();
        // The last connection stays in the watch channel after the VM has ended, and is closed then.
        let is_open =
            |access: &GuestAccess| matches!(access, GuestAccess::Running(guest) if !guest.is_closed());
        let access = access.wait_for(is_open).await.ok()?;
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
    pub(crate) async fn pause(&self, pause: Pause, request_id: Option<&str>) -> Result<Vm, Error> {
        let request_id = request_id.map(str::to_owned);
        self.run(|done| OtherCommand::Pause(StateCommand { request_id, done }, pause)).await?;
        // A later request may have changed the state again.
        Ok(self.record_as(self.pause_state().or(Some(pause))))
    }

    /// Resumes the VM and returns its record. Has no effect on a running one.
    ///
    /// # Errors
    /// `NotReserved`: it is on disk, and the order has no reservation.
    pub(crate) async fn resume(&self, order: ResumeOrder, request_id: Option<&str>) -> Result<Vm, Error> {
        let request_id = request_id.map(str::to_owned);
        self.run(|done| OtherCommand::Resume(StateCommand { request_id, done }, order)).await?;
        Ok(self.record_as(None))
    }

    /// Copies the VM into a capture of the keeper with this id. The caller must free it, and keeps the permit until then.
    pub(crate) async fn copy(
        &self,
        capture: TemplateId,
        purpose: CopyPurpose,
    ) -> Result<CapturePermit, Error> {
        self.run(|done| OtherCommand::Copy(CopyCommand { capture, purpose, done })).await
    }

    /// Ends the VM, and waits until its resources are removed and its end is recorded. `false` if it was already
    /// ending.
    pub(crate) async fn end(&self, reason: EndReason, request_id: Option<&str>) -> Result<bool, Error> {
        let (done, answer) = oneshot::channel();
        let command = EndCommand { reason, request_id: request_id.map(str::to_owned), done };
        self.send_command(Command::End(command)).await?;
        // An end for being idle may be dropped. See `VmTask::is_outdated`.
        if reason != EndReason::Idle {
            self.end_requested.send_replace(true);
        }
        answer.await.map_err(|_| self.unknown_vm())?
    }

    /// Marks the command of the boot as ended and recorded, or as not awaited.
    pub(crate) fn mark_command_over(&self) {
        self.activity.touch();
        self.command_over.send_replace(true);
    }

    /// Waits until the end of the command of the boot is recorded. Returns at once if there is none.
    pub(crate) async fn command_over(&self) {
        if self.facts.exec_id.is_some() {
            // The sender lives as long as `self`, so this never fails.
            let _ = self.command_over.subscribe().wait_for(|over| *over).await;
        }
    }

    fn pause_state(&self) -> Option<Pause> {
        match &*self.access.borrow() {
            GuestAccess::Running(_) => None,
            GuestAccess::Paused(pause) => Some(*pause),
        }
    }

    fn record_as(&self, pause: Option<Pause>) -> Vm {
        let attributes = self.attributes.borrow().clone();
        let vm = self.facts.to_api(attributes, pause, self.arrived.elapsed().as_secs_f64());
        let VmmProcess { pid, resumed_at } = self.vmm.lock().process;
        self.add_snapshot_state(Vm { pid: vm.pid.map(|_| pid), resumed_at, ..vm })
    }

    async fn run<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> OtherCommand,
    ) -> Result<T, Error> {
        let (done, answer) = oneshot::channel();
        self.send_command(Command::Other(Box::new(command(done)))).await?;
        answer.await.map_err(|_| self.unknown_vm())?
    }

    async fn send_command(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).await.map_err(|_| self.unknown_vm())
    }

    fn unknown_vm(&self) -> Error {
        Failure::unknown_vm(self.facts.id).into()
    }
}
