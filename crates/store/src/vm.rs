//! Commands and queries for VMs, and their records.

mod record;

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{
    AccountId, TemplateId, TicketId, VmId,
    swarm::{BootAnswer, EndReason, PausedBy, PausedTo, ResumedBy},
    tickets::Object,
};

pub use self::record::{Pause, VmAttributes, VmBooted, VmChange, VmEnd, VmOnDisk, VmRecord};
use crate::{AppendLog, IdempotentRequest, LogPage, LogPosition, NewKey, ReadLog, Result};

/// How many former process ids lead to a VM.
pub const MAX_FORMER_PIDS: u32 = 16;

/// The methods of a [`Store`](crate::Store) for VMs and the logs of their boot commands.
#[async_trait]
#[warn(missing_docs)]
pub trait VmStore: Send + Sync {
    /// Records VMs that were booted together; fails with `UnknownAccount`, `UnknownTemplate` if their template was
    /// deleted meanwhile, and for a ticket with `UnknownTicket`,
    /// `NameTaken`, and with `Ticket` if its attempt has ended meanwhile.
    async fn record_boots(&self, command: RecordBoots) -> Result<()>;
    /// Returns the stored answer of an earlier boot with the same idempotency key; fails with `IdempotencyMismatch`.
    async fn stored_boot_answer(
        &self,
        account: AccountId,
        once: IdempotentRequest,
        at: Timestamp,
    ) -> Result<Option<BootAnswer>>;
    /// Deletes the stored answer of a boot that failed after its record: its VMs were ended, and its caller got an error.
    async fn forget_boot_answer(&self, account: AccountId, once: IdempotentRequest) -> Result<()>;
    /// Changes the attributes of a live VM and returns its record; fails with `UnknownVm`.
    async fn change_vm(&self, command: ChangeVm) -> Result<VmRecord>;
    /// Records whether a VM is paused, and returns its record; fails with `UnknownVm`.
    async fn record_pause(&self, command: RecordPause) -> Result<VmRecord>;
    /// Records why the memory of VMs on disk cannot be used. VMs that are not on disk in the given snapshot are ignored.
    async fn record_unusable_snapshots(&self, command: RecordUnusableSnapshots) -> Result<()>;
    /// Records the end of a VM, the first time; fails with `UnknownVm`.
    async fn record_end(&self, command: RecordEnd) -> Result<Ended>;
    /// Records the end of the command that a VM was booted with, the first time, and applies the outcome to the ticket
    /// that the VM holds; fails with `UnknownVm`.
    async fn record_command_end(&self, command: RecordCommandEnd) -> Result<()>;
    /// Records the end of those of these VMs that still run, and returns their records in the order of the command.
    /// Unknown VMs are ignored.
    async fn end_vms(&self, command: EndVms) -> Result<Vec<VmRecord>>;
    /// Returns the VMs of all accounts that have not ended, oldest first.
    async fn live_vms(&self) -> Result<Vec<VmRecord>>;
    /// Returns the process ids that live VMs of all accounts had before they were paused to disk, each with its VM, oldest first;
    /// for each VM the last [`MAX_FORMER_PIDS`]. One that another VM of the account got since is not among them.
    async fn former_pids(&self) -> Result<Vec<(VmId, u32)>>;
    /// Returns whether a key is or was bound to this VM, also one that is revoked or has expired.
    async fn had_key(&self, vm: VmId) -> Result<bool>;
    /// Returns the VMs of all accounts that still run although their attempt at a ticket has ended, except those to be
    /// kept.
    async fn vms_without_attempt(&self) -> Result<Vec<VmWithoutAttempt>>;
    /// Returns a page of an account's VMs. Records of ended VMs are kept for as long as events are, at most 100,000 of
    /// them.
    async fn list_vms(&self, query: ListVms) -> Result<VmPage>;
    /// Appends output of a VM's command to its log, if it has one, and deletes the oldest chunks beyond the limits.
    async fn append_log(&self, command: AppendLog) -> Result<()>;
    /// Returns how far the output of a VM's command was read; zero if nothing is recorded.
    async fn log_position(&self, vm: VmId) -> Result<LogPosition>;
    /// Returns part of a log; fails with `UnknownTicket`, `UnknownLog`.
    async fn read_log(&self, query: ReadLog) -> Result<LogPage>;
    /// Returns metrics about live VMs for each account.
    async fn vm_metrics(&self) -> Result<Vec<VmMetrics>>;
}

/// Selects VMs by their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmSet {
    /// Running and paused VMs, newest first.
    Live,
    /// VMs whose processors run, newest first.
    Running,
    /// Paused VMs, newest first.
    Paused,
    /// Ended VMs, by their end, latest first.
    Ended,
}

/// Conditions that listed VMs satisfy. `None`, or a metadata key that is absent, is no condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmFilter {
    /// Exact name. A string that is not a valid VM name matches nothing.
    pub name: Option<String>,
    pub template: Option<String>,
    /// Where the memory of a paused VM is kept. Other VMs do not satisfy the condition.
    pub paused_to: Option<PausedTo>,
    /// Required metadata entries: strings as they are; numbers, booleans and null in their JSON form.
    pub metadata: BTreeMap<String, String>,
}

/// Lists the VMs of an account.
#[derive(Debug, Clone)]
pub struct ListVms {
    pub account: AccountId,
    pub set: VmSet,
    pub filter: VmFilter,
    /// Page size; at least 1.
    pub limit: u32,
    /// Cursor: only VMs that follow this one in the order of the list.
    pub after: Option<VmId>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct VmPage {
    /// In the order that [`VmSet`] defines.
    pub vms: Vec<VmRecord>,
    /// `after` of the next page; `None` on the last page.
    pub next: Option<VmId>,
}

/// Metrics about the VMs of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmMetrics {
    pub account: String,
    pub running: u64,
    pub paused: u64,
    /// Memory of the running guests and of those that are paused to memory, in MiB.
    pub memory_mb: u64,
}

/// The ticket attempt that a VM was booted for. The VM holds the attempt as soon as the boot is recorded.
#[derive(Debug, Clone)]
pub struct BootAttempt {
    pub ticket: TicketId,
    /// The open attempt of the ticket.
    pub attempt: u32,
    /// The key given to the VM. It is bound to that VM; its `vm` field is ignored.
    pub key: NewKey,
    /// Whether the VM keeps running after the attempt has ended.
    pub keep_vm: bool,
}

/// A running VM whose attempt at the ticket it was booted for has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmWithoutAttempt {
    pub account: AccountId,
    pub vm: VmId,
    /// Whether the attempt finished the ticket. Otherwise another agent may have claimed the ticket already.
    pub finished: bool,
}

/// Records VMs that were booted together: all of them or none. Writes an event `vm.booted` for each, and `key.created`
/// and `ticket.updated` if the boot was for a ticket.
#[derive(Debug, Clone)]
pub struct RecordBoots {
    pub vms: Vec<VmBooted>,
    pub at: Timestamp,
    pub request_id: Option<String>,
    /// The attempt that this boot was for. Such a boot has exactly one VM.
    pub attempt: Option<BootAttempt>,
    /// The answer to store for a request with an idempotency key.
    pub answer: Option<(IdempotentRequest, BootAnswer)>,
}

/// Changes the attributes of a live VM. Writes an event `vm.renamed` if the name changes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeVm {
    pub vm: VmId,
    pub change: VmChange,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// What a VM does after a pause or a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseChange {
    PausedToMemory {
        by: PausedBy,
    },
    PausedToDisk {
        by: PausedBy,
        /// The snapshot of the keeper that has the VM.
        snapshot: TemplateId,
    },
    /// Its processors run again, in the same VMM.
    Runs {
        by: ResumedBy,
    },
    /// It was restored from its snapshot into a VMM with this process id.
    Restored {
        pid: u32,
        by: ResumedBy,
        /// Whether it has its memory and processes, and not only its disk.
        memory: bool,
    },
}

impl PauseChange {
    /// Where the VM is paused then, and what paused it.
    pub fn pause(self) -> Option<Pause> {
        match self {
            Self::PausedToMemory { by } => Some(Pause { to: PausedTo::Memory, by }),
            Self::PausedToDisk { by, .. } => Some(Pause { to: PausedTo::Disk, by }),
            Self::Runs { .. } | Self::Restored { .. } => None,
        }
    }
}

/// Records that a VM is paused, or runs. Writes an event `vm.paused` or `vm.resumed` if that is a change.
#[derive(Debug, Clone)]
pub struct RecordPause {
    pub vm: VmId,
    pub change: PauseChange,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Records why the memory of VMs on disk cannot be used. Writes an event `vm.outdated` for each VM whose reason is not on record
/// yet. A resume removes the reason from the record.
#[derive(Debug, Clone)]
pub struct RecordUnusableSnapshots {
    pub snapshots: Vec<UnusableSnapshot>,
    pub at: Timestamp,
}

/// One snapshot of [`RecordUnusableSnapshots`]. It is outdated or damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableSnapshot {
    /// The VM that is on disk in it.
    pub vm: VmId,
    /// The keeper's id of it.
    pub snapshot: TemplateId,
    /// Why the memory of the snapshot cannot be used, for the owner of the VM; the event has it.
    pub reason: String,
}

/// Records that a VM ended and revokes the keys bound to it. Writes events `vm.ended` and `key.revoked` the first time.
#[derive(Debug, Clone)]
pub struct RecordEnd {
    pub vm: VmId,
    pub reason: EndReason,
    pub at: Timestamp,
    /// The request that ended the VM, if any.
    pub request_id: Option<String>,
    /// More about the reason, for the event.
    pub message: Option<String>,
}

/// Records the end of the command that a VM was booted with. An attempt that the VM still holds ends with it.
#[derive(Debug, Clone)]
pub struct RecordCommandEnd {
    pub vm: VmId,
    pub outcome: CommandOutcome,
    pub at: Timestamp,
}

/// Effect of the end of a command on the ticket that its VM was booted for.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandOutcome {
    /// The ticket is completed with this result.
    Completed(Object),
    /// The attempt ends and counts towards `max_attempts`. The object is stored with the attempt.
    AttemptFailed(Object),
    /// The ticket is released; the attempt does not count. The object is stored with the attempt.
    Released(Object),
}

/// Result of [`RecordEnd`].
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The VM with its first recorded end.
    pub record: VmRecord,
    /// Whether this command recorded the end.
    pub first: bool,
}

/// Records the end of those of these VMs that still run, for example VMs that a restarted server cannot adopt. Writes
/// the same events as [`RecordEnd`].
#[derive(Debug, Clone)]
pub struct EndVms {
    pub vms: Vec<VmToEnd>,
    pub reason: EndReason,
    pub at: Timestamp,
}

/// One VM of [`EndVms`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmToEnd {
    pub vm: VmId,
    /// Why it ends, in a short sentence for its owner; the event has it.
    pub message: Option<String>,
}
