//! VMs: their records, how they are booted, and what the machine can hold.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{TicketId, VmId, VmName};

/// The template that a boot uses where none is named.
pub const BASE_TEMPLATE: &str = "base";

/// The variable of a VM's commands that names the API, in a VM that has a key of its own.
pub const URL_VARIABLE: &str = "SKEP_URL";

/// What a VM is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum VmState {
    /// Its processors run.
    Running,
    /// Its processors are stopped.
    Paused,
    /// Its VMM has ended; the record is kept for a time.
    Ended,
}

/// Where a VM came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BootSource {
    /// Restored ahead of the request.
    Pool,
    /// Restored for the request.
    Cold,
}

/// The restore's receipt. Every figure is measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootReceipt {
    /// Where the VM came from.
    pub source: BootSource,
    /// Loading the snapshot until its processors ran, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 310.5))]
    pub restore_ms: f64,
    /// The handshake that gave it its identity, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 41.2))]
    pub identity_ms: f64,
    /// From the request's arrival until the agent took commands under the VM's own identity, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 12.8))]
    pub ready_ms: f64,
    /// Whether the guest reported fresh randomness.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub reseeded: bool,
    /// By how much its clock was set, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 0.4))]
    pub clock_step_ms: f64,
}

/// A VM's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vm {
    /// The process id on the server.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: u32,
    /// The stable id, never given twice.
    pub id: VmId,
    /// The name that it was given; null where it has none. Unique among the account's living VMs.
    #[cfg_attr(feature = "openapi", schema(inline))]
    #[serde(default)]
    pub name: Option<VmName>,
    /// Its address inside skep's network namespace.
    #[cfg_attr(feature = "openapi", schema(example = "10.77.0.2"))]
    pub ip: String,
    /// Seconds since the boot call, up to its end.
    #[cfg_attr(feature = "openapi", schema(example = 12.5))]
    pub uptime: f64,
    /// What it is doing.
    pub state: VmState,
    /// The template that it was restored from.
    #[cfg_attr(feature = "openapi", schema(example = "base"))]
    pub template: String,
    /// When the boot call arrived.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub started_at: Timestamp,
    /// When it ends by itself; null is never.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
    /// Virtual processors.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 176))]
    pub memory_mb: u64,
    /// What the caller wrote on it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The ticket that it works on.
    pub ticket: Option<TicketId>,
    /// The command that it was booted with, to follow by `GET /api/swarm/vm/{pid}/exec/{exec_id}`.
    #[cfg_attr(feature = "openapi", schema(example = "exec_01jv0000000000000000000000"))]
    pub exec_id: Option<String>,
    /// The restore's receipt.
    pub boot: BootReceipt,
    /// When it ended; only in records of VMs that ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::time::option")]
    pub ended_at: Option<Timestamp>,
    /// Why it ended; only in records of VMs that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
}

/// A page of VMs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmList {
    /// Those that live: the youngest first. Those that ended: the last to end first.
    pub vms: Vec<Vm>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// The body of `POST /api/swarm/boot`. No body, an empty one and `{}` mean one VM.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootRequest {
    /// How many VMs: a whole number from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64, example = 1))]
    pub count: Option<u32>,
    /// The VM's name, which can stand wherever its process id can; then `count` is 1. Unique among the account's living VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub name: Option<VmName>,
    /// The template; `base` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "base"))]
    pub template: Option<String>,
    /// Milliseconds until the VMs end by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, minimum = 1))]
    pub ttl_ms: Option<u64>,
    /// Kept with the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seen by every command of the VMs; never in a record, event or log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// A ticket that the VM shall work on, which is claimed first: then `count` is 1. Its commands see `SKEP_TICKET_ID`,
    /// `SKEP_TICKET_ATTEMPT`, and `SKEP_API_KEY`, a key of this VM alone, which counts at `SKEP_URL`. The ticket is held while the
    /// VM lives. The file `/run/skep/ticket.json` (`SKEP_TICKET_FILE`) has `{"ticket": RECORD, "prerequisites": [RECORD...]}`; of
    /// prerequisites that do not fit into 4 MiB, it has `id`, `title` and `status`, and `truncated` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketId>,
    /// Is started by `/bin/sh -c` in each of the VMs, and runs for as long as it likes; the answer does not wait for its
    /// end. With `ticket`, the ticket is held while the command runs. Exit 0 then completes it, with the object in
    /// `/run/skep/result.json` (`SKEP_RESULT_FILE`; at most 1 MiB), else with `exit_code`, `stdout_tail` and `stderr_tail`. 126 and 127
    /// give it back, which does not count; any other exit, and a file that is no such object, end the attempt, counted
    /// (`command_ended`). A ticket that the command finished by the API stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "/usr/local/bin/agent"))]
    pub command: Option<String>,
    /// With `ticket`: whether the VM lives on when its attempt at the ticket has ended. Unless this is true, the VM ends with the
    /// attempt, for the reason `ticket_ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = false))]
    pub keep_vm: Option<bool>,
}

/// The body of `PATCH /api/swarm/vm/:pid`. What is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeRequest {
    /// Milliseconds from now until the VM ends by itself; null is never.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, value_type = Option<u64>, minimum = 1, example = 600_000))]
    pub ttl_ms: Option<Option<u64>>,
    /// Takes the place of all metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The VM's name, unique among the account's living VMs; null takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<VmName>, inline))]
    pub name: Option<Option<VmName>>,
}

/// The answer of `POST /api/swarm/boot`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootAnswer {
    /// The VMs; each answers exec at its own address.
    pub vms: Vec<Vm>,
    /// The whole request, commit included, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 14.1))]
    pub elapsed_ms: f64,
}

/// How well VMs are separated from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Isolation {
    /// The processor's virtualization separates them.
    Hardware,
    /// An emulator in an ordinary process does.
    Emulated,
}

/// The engine in use, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EngineReport {
    /// Its name and version, such as `qemu 7.2.22`.
    #[cfg_attr(feature = "openapi", schema(example = "qemu 7.2.22"))]
    pub name: String,
    /// `kvm` or `tcg`.
    #[cfg_attr(feature = "openapi", schema(example = "tcg"))]
    pub accel: String,
    /// The isolation that it gives.
    pub isolation: Isolation,
    /// What was measured, and what follows.
    #[cfg_attr(feature = "openapi", schema(example = "/dev/kvm is missing"))]
    pub reason: String,
}

/// What the machine can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// VMs at the same time.
    #[cfg_attr(feature = "openapi", schema(example = 64))]
    pub max_vms: u32,
    /// Memory for VMs, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 16384))]
    pub memory_mb: u64,
    /// Memory counted for the VMs that live, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 176))]
    pub memory_used_mb: u64,
}

/// VMs kept ready of one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolState {
    /// Ready now.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub ready: u32,
    /// Wanted.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub target: u32,
}

/// The answer of `GET /api/swarm/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwarmStatus {
    /// The account's VMs, oldest first.
    pub vms: Vec<Vm>,
    /// How many they are.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub count: u32,
    /// VMs kept ready, by template.
    pub pool: BTreeMap<String, PoolState>,
    /// What the machine can hold.
    pub capacity: Capacity,
    /// The engine in use; null where this start has no swarm.
    pub engine: Option<EngineReport>,
}

/// The answer of `POST /api/swarm/cleanup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CleanupAnswer {
    /// How many VMs were ended.
    #[cfg_attr(feature = "openapi", schema(example = 10))]
    pub terminated: u32,
}

/// The answer of `DELETE /api/swarm/vm/:pid`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeleteAnswer {
    /// The process id that it had.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: u32,
    /// Its id.
    pub id: VmId,
    /// Always true: nothing of it is left.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub terminated: bool,
}

/// The answer of `GET /api/swarm/vm/:pid/console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Console {
    /// The serial log, its last part; after a restart of the server, what came from then on.
    #[cfg_attr(feature = "openapi", schema(example = "[    0.000000] Linux version 6.1.0\n"))]
    pub console: String,
    /// Whether an earlier part was left out.
    pub truncated: bool,
}

/// Why a VM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EndReason {
    /// By `DELETE`.
    Deleted,
    /// By cleanup.
    Cleanup,
    /// Its time was over.
    Expired,
    /// The guest powered itself off.
    Poweroff,
    /// Its process died.
    Crashed,
    /// Its process was killed for memory.
    OutOfMemory,
    /// Not found after a restart.
    Lost,
    /// It could not be booted, or its agent can no longer be reached.
    Failed,
    /// Its attempt at the ticket that it was booted for has ended.
    TicketEnded,
}

impl EndReason {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Cleanup => "cleanup",
            Self::Expired => "expired",
            Self::Poweroff => "poweroff",
            Self::Crashed => "crashed",
            Self::OutOfMemory => "out_of_memory",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::TicketEnded => "ticket_ended",
        }
    }
}
