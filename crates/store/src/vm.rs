//! VMs: their records and commands.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};
use skep_api::{
    AccountId, TicketId, VmId, VmName,
    swarm::{BootAnswer, BootReceipt, EndReason},
    tickets::Object,
};

use crate::{NewKey, Once};

/// A VM at its boot, and what never changes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct VmBooted {
    /// Its id.
    pub id: VmId,
    /// Its account.
    pub account: AccountId,
    /// Its name, unique among the living VMs of the account.
    pub name: Option<VmName>,
    /// The process id on the server.
    pub pid: u32,
    /// Its address inside skep's network namespace.
    pub ip: String,
    /// The template that it was restored from.
    pub template: String,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// What the caller wrote on it.
    pub metadata: Map<String, Value>,
    /// When the boot call arrived.
    pub started_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// The ticket that it was booted for.
    pub ticket: Option<TicketId>,
    /// The command that it was booted with, by the id that the guest knows it by.
    pub exec_id: Option<String>,
    /// The restore's receipt.
    pub boot: BootReceipt,
}

/// How a VM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmEnd {
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: EndReason,
}

/// A VM as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct VmRecord {
    /// What was recorded at its boot.
    pub vm: VmBooted,
    /// Whether the command that it was booted with runs, as far as anybody knows.
    pub command_runs: bool,
    /// How it ended; `None` while it lives.
    pub end: Option<VmEnd>,
}

/// Which VMs a list has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmsOf {
    /// Those that live, the youngest first.
    Living,
    /// Those that ended, the last to end first.
    Ended,
}

/// What the VMs of a list have. `None`, and a key that is not there, is no condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmFilter {
    /// This name. One that no VM can have matches none.
    pub name: Option<String>,
    /// This template.
    pub template: Option<String>,
    /// These entries in their metadata: a string as it is, and a number, a truth value or null as JSON writes it.
    pub metadata: BTreeMap<String, String>,
}

/// Asks for a page of an account's VMs.
#[derive(Debug, Clone)]
pub struct ListVms {
    /// Whose VMs.
    pub account: AccountId,
    /// Which of them.
    pub which: VmsOf,
    /// What they have.
    pub filter: VmFilter,
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended: only VMs that come after this one.
    pub after: Option<VmId>,
}

/// A page of VMs.
#[derive(Debug, Clone, PartialEq)]
pub struct VmPage {
    /// In the order of their kind.
    pub vms: Vec<VmRecord>,
    /// The next page's `after`; `None` at the end.
    pub next: Option<VmId>,
}

/// What metrics show of the VMs of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmFigures {
    /// The account's name.
    pub account: String,
    /// VMs that live.
    pub running: u64,
    /// Memory of their guests.
    pub memory_mb: u64,
}

/// An attempt that a VM was booted for, which it holds from its record on.
#[derive(Debug, Clone)]
pub struct BootedFor {
    /// The ticket.
    pub ticket: TicketId,
    /// Its attempt, which goes on.
    pub attempt: u32,
    /// The key that the VM has: bound to it, whatever VM it says.
    pub key: NewKey,
    /// Whether the VM lives on when the attempt has ended.
    pub keep_vm: bool,
}

/// A VM that lives though its attempt at the ticket that it was booted for has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmWithoutAttempt {
    /// Its account.
    pub account: AccountId,
    /// Its id.
    pub vm: VmId,
    /// Whether the attempt finished the ticket. Otherwise somebody else may claim the ticket by now.
    pub finished: bool,
}

/// Records VMs that were booted together: all of them or none. Event `vm.booted` for each; `key.created` and `ticket.updated`
/// where one was booted for a ticket.
#[derive(Debug, Clone)]
pub struct RecordBoots {
    /// The VMs.
    pub vms: Vec<VmBooted>,
    /// Now.
    pub at: Timestamp,
    /// The request that booted them.
    pub request_id: Option<String>,
    /// What the one VM of this boot works on.
    pub work: Option<BootedFor>,
    /// The answer that is kept, for a request that shall have its effect once.
    pub answer: Option<(Once, BootAnswer)>,
}

/// Changes what may change of a VM that lives. What is `None` stays. Event `vm.renamed` where its name changes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeVm {
    /// Which VM.
    pub vm: VmId,
    /// Its name now; the inner `None` is none.
    pub name: Option<Option<VmName>>,
    /// What the caller writes on it now, in place of all that stood there.
    pub metadata: Option<Map<String, Value>>,
    /// When it ends by itself now; the inner `None` is never.
    pub expires_at: Option<Option<Timestamp>>,
    /// Now.
    pub at: Timestamp,
    /// The request that asked for it.
    pub request_id: Option<String>,
}

/// Records that a VM ended, and revokes the keys bound to it. Events `vm.ended` and `key.revoked`, the first time.
#[derive(Debug, Clone)]
pub struct RecordEnd {
    /// Which VM.
    pub vm: VmId,
    /// Why.
    pub reason: EndReason,
    /// Now.
    pub at: Timestamp,
    /// The request that ended it, if one did.
    pub request_id: Option<String>,
}

/// Records that the command that a VM was booted with ended: an attempt that the VM still holds ends with it.
#[derive(Debug, Clone)]
pub struct RecordCommandEnd {
    /// Which VM.
    pub vm: VmId,
    /// What it means for the attempt.
    pub outcome: CommandOutcome,
    /// Now.
    pub at: Timestamp,
}

/// What the end of a command means for the ticket that its VM was booted for.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandOutcome {
    /// The ticket is completed with this result.
    Completes(Object),
    /// The attempt ended and counts. This is kept with the attempt.
    Counts(Object),
    /// The ticket is given back, which does not count. This is kept with the attempt.
    GivesBack(Object),
}

/// What became of a [`RecordEnd`].
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The VM, with the end that counts: the first.
    pub record: VmRecord,
    /// Whether this command ended it.
    pub first: bool,
}

/// Records the end of those of these VMs that live, as a start does with VMs that it cannot take over. Events as for
/// [`RecordEnd`].
#[derive(Debug, Clone)]
pub struct EndVms {
    /// Which VMs.
    pub vms: Vec<VmId>,
    /// Why.
    pub reason: EndReason,
    /// Now.
    pub at: Timestamp,
}
