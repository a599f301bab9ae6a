//! VMs: their records, boot requests, and the capacity of the machine.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::swarm_samples::{SampleTotals, SwarmSample, SwarmSamples, VmSample};
use crate::{TicketId, VmId, VmName, egress::EgressPolicy, templates::TemplateName};

/// The template of a boot that names none.
pub const BASE_TEMPLATE: &str = "base";

/// The environment variable with the URL of the API, set for commands in a VM that has its own key.
pub const API_URL_VARIABLE: &str = "SKEP_URL";

/// The state of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum VmState {
    /// The virtual processors run.
    Running,
    /// The virtual processors are stopped.
    Paused,
    /// The VMM process has ended. The record is kept for a limited time.
    Ended,
}

/// Where the memory of a paused VM is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PausedTo {
    /// In the memory of the VMM process, which continues to exist.
    Memory,
    /// In files of the server. The VMM process has ended, and its memory is free.
    Disk,
}

impl PausedTo {
    /// The value as it is sent, such as `memory`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// Why a paused VM was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResumedBy {
    /// A call of `POST /api/swarm/vm/{pid}/resume`.
    Request,
    /// Another call that needed the VM to run.
    Activity,
}

/// What paused a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PausedBy {
    /// A call of `pause`. Only a call of `resume` resumes the VM.
    Request,
    /// Its `idle_timeout_ms`. The next request that needs the VM resumes it.
    Idle,
    /// The server, which needed the memory of a VM that an idle timeout had paused. The next request that needs the VM
    /// resumes it.
    Memory,
}

impl PausedBy {
    /// The value as it is sent, such as `idle`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Idle => "idle",
            Self::Memory => "memory",
        }
    }

    /// What paused a VM that is paused again. A pause by a request only ends by a request.
    #[must_use]
    pub const fn after(self, before: Self) -> Self {
        match before {
            Self::Request => Self::Request,
            Self::Idle | Self::Memory => self,
        }
    }
}

/// What happens to a VM that was idle for its `idle_timeout_ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnIdle {
    /// It is paused, and keeps its memory.
    #[default]
    Pause,
    /// It is paused to disk.
    PauseToDisk,
    /// It ends, with the reason `idle`.
    End,
}

impl OnIdle {
    /// The value as it is sent, such as `pause_to_disk`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::PauseToDisk => "pause_to_disk",
            Self::End => "end",
        }
    }
}

/// How a VM was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BootSource {
    /// Taken from the pool of VMs restored in advance.
    Pool,
    /// Restored for this request.
    Cold,
}

/// Measured times of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootReceipt {
    /// How the VM was obtained.
    pub source: BootSource,
    /// From loading the snapshot until the processors ran, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 310.5))]
    pub restore_ms: f64,
    /// The handshake that gave the VM its identity, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 41.2))]
    pub identity_ms: f64,
    /// From the arrival of the request until the agent accepted commands under the VM's own identity, in
    /// milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 12.8))]
    pub ready_ms: f64,
    /// Whether the guest reported that its random number generator was reseeded.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub reseeded: bool,
    /// The correction of the guest's clock, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 0.4))]
    pub clock_step_ms: f64,
}

/// The record of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vm {
    /// The process id on the server; null while the VM is paused to disk. It changes when the VM is resumed from there, and may
    /// be reused after the VM has ended.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: Option<u32>,
    /// The unique and stable id.
    pub id: VmId,
    /// The name, unique among the account's running and paused VMs; null if the VM has none.
    #[cfg_attr(feature = "openapi", schema(inline))]
    #[serde(default)]
    pub name: Option<VmName>,
    /// The address inside skep's network namespace.
    #[cfg_attr(feature = "openapi", schema(example = "10.77.0.2"))]
    pub ip: String,
    /// Seconds from the boot request until now, or until the end of the VM.
    #[cfg_attr(feature = "openapi", schema(example = 12.5))]
    pub uptime: f64,
    /// The state of the VM.
    pub state: VmState,
    /// Where the VM's memory is kept; only in records of paused VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_to: Option<PausedTo>,
    /// What paused the VM; only in records of paused VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<PausedBy>,
    /// The template that the VM was restored from.
    #[cfg_attr(feature = "openapi", schema(example = "base"))]
    pub template: String,
    /// The VM that this one was forked from; null if it was booted from its template.
    #[serde(default)]
    pub parent: Option<VmId>,
    /// When the boot request arrived.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub started_at: Timestamp,
    /// When the VM was last resumed from disk; null if it never was.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub resumed_at: Option<Timestamp>,
    /// When the VM ends automatically; null means never.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub expires_at: Option<Timestamp>,
    /// The time without activity after which `on_idle` happens, in milliseconds; null means never.
    #[cfg_attr(feature = "openapi", schema(example = 600_000))]
    #[serde(default)]
    pub idle_timeout_ms: Option<u64>,
    /// What happens after `idle_timeout_ms`.
    #[serde(default)]
    pub on_idle: OnIdle,
    /// What the VM may connect to outside: `"none"`, `"all"`, or `{"allow": [...], "ports": [...]}`.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::policy_schema))]
    #[serde(default)]
    pub egress: EgressPolicy,
    /// The number of virtual processors.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub vcpus: u32,
    /// The memory of the guest, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 1024))]
    pub memory_mb: u64,
    /// Additional data of the caller, not interpreted by the server.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The ticket that the VM works on.
    pub ticket: Option<TicketId>,
    /// The id of the boot command, for `GET /api/swarm/vm/{pid}/exec/{exec_id}`.
    #[cfg_attr(feature = "openapi", schema(example = "exec_01jv0000000000000000000000"))]
    pub exec_id: Option<String>,
    /// What the VM uses, sampled every second; null if it was not sampled yet, and in lists.
    #[serde(default)]
    pub usage: Option<VmUsage>,
    /// Measured times of the restore.
    pub boot: BootReceipt,
    /// When the VM ended; only in records of ended VMs.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::time::option")]
    pub ended_at: Option<Timestamp>,
    /// Why the VM ended; only in records of ended VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
}

/// What a VM currently uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmUsage {
    /// The processor time since the restore, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 1200))]
    pub cpu_ms: u64,
    /// The memory that the end of the VM would free, in MiB. Memory that VMs of a template share is not included.
    #[cfg_attr(feature = "openapi", schema(example = 61))]
    pub memory_mb: u64,
}

/// What a VM uses, and its limits. Answer of `GET /api/swarm/vm/{pid}/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmMetrics {
    /// The processors.
    pub cpu: CpuMetrics,
    /// The memory on the server's machine.
    pub memory: MemoryMetrics,
    /// The VM's own disk layer.
    pub disk: DiskMetrics,
    /// The network interface.
    pub network: NetworkMetrics,
    /// What the guest reports; null if it is paused or does not answer in time.
    pub guest: Option<GuestMetrics>,
}

/// Use of processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CpuMetrics {
    /// The processor time since the restore, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 1200))]
    pub used_ms: u64,
    /// The number of virtual processors.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub vcpus: u32,
}

/// Use of memory on the server's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryMetrics {
    /// The memory that the end of the VM would free, in MiB. Memory that VMs of a template share is not included.
    #[cfg_attr(feature = "openapi", schema(example = 61))]
    pub held_mb: u64,
    /// The memory that the VM is promised, in MiB: that of its guest, and the overhead of its VMM.
    /// `memory_promised_mb` of the capacity is the sum over all VMs.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub promised_mb: u64,
    /// The memory charged to the VM, in MiB. Shared memory is charged to the first VM that used it.
    #[cfg_attr(feature = "openapi", schema(example = 90))]
    pub charged_mb: u64,
    /// The limit of the charged memory, in MiB. A VM that exceeds it ends as `out_of_memory`.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub limit_mb: u64,
}

/// Use of a VM's own disk layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskMetrics {
    /// The space on the server's disk, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub used_mb: u64,
    /// The size of the layer, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 10240))]
    pub size_mb: u64,
    /// What the guest read and wrote; null if that could not be read yet.
    pub traffic: Option<DiskTrafficMetrics>,
}

/// What a guest read from and wrote to its own disk layer since the restore, by its disk device. While the VM does not
/// answer, these are the last known values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskTrafficMetrics {
    /// The bytes that the guest read.
    #[cfg_attr(feature = "openapi", schema(example = 65_536))]
    pub read_bytes: u64,
    /// The bytes that the guest wrote.
    #[cfg_attr(feature = "openapi", schema(example = 1_048_576))]
    pub written_bytes: u64,
    /// The read operations.
    #[cfg_attr(feature = "openapi", schema(example = 9))]
    pub reads: u64,
    /// The write operations.
    #[cfg_attr(feature = "openapi", schema(example = 40))]
    pub writes: u64,
    /// The requests of the guest to write caches to the disk.
    #[cfg_attr(feature = "openapi", schema(example = 4))]
    pub flushes: u64,
}

/// Traffic of a VM since the restore, link-layer headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkMetrics {
    /// The bytes that the VM received.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub received_bytes: u64,
    /// The bytes that the VM sent.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub sent_bytes: u64,
}

/// What only the guest knows. The guest is not trusted, so these values may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuestMetrics {
    /// Processes of programs. The guest's kernel, its agent, and shells that wait for a command do not count: it is 0 in a
    /// VM that runs no program.
    #[cfg_attr(feature = "openapi", schema(example = 4))]
    pub processes: u32,
    /// The memory that the guest's kernel manages, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 970))]
    pub memory_mb: u64,
    /// The memory that programs in the guest can still take, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 910))]
    pub memory_available_mb: u64,
}

/// A page of VMs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmList {
    /// Newest first; in a list of ended VMs, the most recently ended first.
    pub vms: Vec<Vm>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// VMs to boot. Body of `POST /api/swarm/boot`. Without a body, or with `{}`, one VM is booted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootRequest {
    /// The number of VMs, at least 1; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64, example = 1))]
    pub count: Option<u32>,
    /// The VM's name, which can be used in place of its process id. It must be unique among the account's running and
    /// paused VMs, and requires that `count` is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub name: Option<VmName>,
    /// The template; default `base`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "base"))]
    pub template: Option<String>,
    /// Whether VMs of a snapshot begin with its memory and processes; default true. With false, they start from its disk alone,
    /// with its files, which takes some seconds more. That also works if the memory of the snapshot is outdated, after an
    /// update of the server or on another processor, or damaged. Other templates ignore this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// The time to live of the VMs, in milliseconds, after which they end automatically. Default, also for null: the
    /// server's setting, which is unlimited unless configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, minimum = 1))]
    pub ttl_ms: Option<u64>,
    /// The time without activity after which `on_idle` happens, in milliseconds, at least 1,000. Activity is a call that
    /// needs the guest, such as one of files, git or exec, while it lasts; the `command` of the boot; and a connection
    /// through egress that is open. Default, also for null: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(maximum = 315_360_000_000_u64, minimum = 1000, example = 600_000)
    )]
    pub idle_timeout_ms: Option<u64>,
    /// What happens after `idle_timeout_ms`, which it requires; default `pause`. The next call that needs a VM that was
    /// paused so resumes it, and waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_idle: Option<OnIdle>,
    /// Additional data, stored unchanged in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// What the VMs may connect to outside: `"none"` (default); `"all"`, which means all public addresses; or
    /// `{"allow": [...], "ports": [...]}` with up to 64 host names, `*.HOST` for all names below one, and IPv4 networks or
    /// addresses, and up to 64 ports (default: every port). The server itself, its network, and private, link-local and
    /// metadata addresses are never reached, unless the operator allows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::policy_schema))]
    pub egress: Option<EgressPolicy>,
    /// Environment variables for every command in the VMs. They never appear in a record, an event or a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// A ticket for the VM to work on, which is claimed first; requires that `count` is 1. The VM's commands get the
    /// variables `SKEP_TICKET_ID`, `SKEP_TICKET_ATTEMPT`, and `SKEP_API_KEY`, a key of this VM that is valid at
    /// `SKEP_URL`. The ticket is held while the VM lives. The file `/run/skep/ticket.json` (`SKEP_TICKET_FILE`)
    /// contains `{"ticket": RECORD, "prerequisites": [RECORD...]}`. Prerequisites that exceed 4 MiB are reduced to
    /// `id`, `title` and `status`, and `truncated` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<TicketId>,
    /// A command that is started by `/bin/sh -c` in each VM, without a time limit. The answer does not wait for its
    /// end. With `ticket`, the ticket is held while the command runs. Exit code 0 then completes the ticket, with the
    /// object in `/run/skep/result.json` (`SKEP_RESULT_FILE`; at most 1 MiB), or without such a file with
    /// `exit_code`, `stdout_tail` and `stderr_tail`. Exit codes 126 and 127 release the ticket, and the attempt does
    /// not count. Any other exit, or an invalid result file, ends the attempt as `command_ended`, which counts. If
    /// the command finished the ticket through the API, that outcome stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "/usr/local/bin/agent"))]
    pub command: Option<String>,
    /// With `ticket`: whether the VM continues to run when its attempt at the ticket has ended. Otherwise the VM ends
    /// with the attempt, with the reason `ticket_ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = false))]
    pub keep_vm: Option<bool>,
}

/// Changes to a VM. Body of `PATCH /api/swarm/vm/{pid}`. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeRequest {
    /// The new time to live from now, in milliseconds; null means that the VM never ends automatically.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, value_type = Option<u64>, minimum = 1, example = 600_000))]
    pub ttl_ms: Option<Option<u64>>,
    /// The time without activity after which `on_idle` happens, in milliseconds; null means never.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, value_type = Option<u64>, minimum = 1000, example = 600_000))]
    pub idle_timeout_ms: Option<Option<u64>>,
    /// What happens after `idle_timeout_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_idle: Option<OnIdle>,
    /// Replaces all metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The new name, unique among the account's running and paused VMs; null removes the name.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<VmName>, inline))]
    pub name: Option<Option<VmName>>,
    /// What the VM may connect to outside, as at the boot. Connections that it forbids end; the others stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::policy_schema))]
    pub egress: Option<EgressPolicy>,
}

/// Where to pause a VM. Body of `POST /api/swarm/vm/{pid}/pause`. No body, an empty one and `{}` mean `memory`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseRequest {
    /// Where the VM's memory is kept; default `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<PausedTo>,
}

/// How to resume a VM. Body of `POST /api/swarm/vm/{pid}/resume`. No body, an empty one and `{}` mean with its memory.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResumeRequest {
    /// Whether the VM goes on with its memory; default true. With false, a VM that is paused to disk starts again from its disk
    /// alone: it keeps id, name, address and files, and loses its processes, the content of `/run` and `/dev/shm`, and
    /// the environment variables of its boot. That also works if its memory is outdated, after an update of the server or on
    /// another processor, or damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// A snapshot to take of a VM. Body of `POST /api/swarm/vm/{pid}/snapshot`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotRequest {
    /// The name of the template that the snapshot becomes.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = String, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$", example = "installed")
    )]
    pub name: TemplateName,
    /// Its purpose, for people: one line of at most 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            max_length = 500,
            pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
            example = "dependencies installed"
        )
    )]
    pub description: Option<String>,
}

/// The booted VMs. Answer of `POST /api/swarm/boot`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BootAnswer {
    /// The VMs; each of them accepts commands.
    pub vms: Vec<Vm>,
    /// The duration of the request including the commit, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 14.1))]
    pub elapsed_ms: f64,
}

/// How VMs are isolated from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Isolation {
    /// By hardware virtualization.
    Hardware,
    /// By an emulator that runs as an ordinary process.
    Emulated,
}

/// The VM engine in use, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EngineReport {
    /// The name and version, such as `qemu 7.2.22`.
    #[cfg_attr(feature = "openapi", schema(example = "qemu 7.2.22"))]
    pub name: String,
    /// The accelerator: `kvm` or `tcg`.
    #[cfg_attr(feature = "openapi", schema(example = "tcg"))]
    pub accel: String,
    /// The isolation that the engine provides.
    pub isolation: Isolation,
    /// The measurements on which the choice is based.
    #[cfg_attr(feature = "openapi", schema(example = "/dev/kvm is missing"))]
    pub reason: String,
}

/// The capacity of the machine for VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// The maximum number of VMs at the same time.
    #[cfg_attr(feature = "openapi", schema(example = 64))]
    pub max_vms: u32,
    /// The memory that VMs may be promised in total, in MiB: the memory for VMs times the setting `memory_overcommit`.
    #[cfg_attr(feature = "openapi", schema(example = 65536))]
    pub memory_mb: u64,
    /// The memory promised to existing VMs, in MiB: of their guests, and the overhead of their VMMs.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub memory_used_mb: u64,
    /// The same as `memory_used_mb`.
    #[cfg_attr(feature = "openapi", schema(example = 1152))]
    pub memory_promised_mb: u64,
    /// The memory that VMs really take, in MiB: of their VMMs, and of the templates that they share.
    #[cfg_attr(feature = "openapi", schema(example = 104))]
    pub memory_held_mb: u64,
    /// The memory of the machine that is still available, in MiB. Less than a tenth of it, or 512 MiB, is not given to
    /// further VMs. Null until it is measured.
    #[cfg_attr(feature = "openapi", schema(example = 20000))]
    pub memory_available_mb: Option<u64>,
}

/// The pool of VMs restored in advance from one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolState {
    /// The number of VMs that are ready.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub ready: u32,
    /// The number of VMs that the pool keeps ready.
    #[cfg_attr(feature = "openapi", schema(example = 8))]
    pub target: u32,
}

/// The account's VMs and the state of the machine. Answer of `GET /api/swarm/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwarmStatus {
    /// The account's VMs, oldest first.
    pub vms: Vec<Vm>,
    /// The number of VMs in `vms`.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub count: u32,
    /// The disk space of the account's templates, its VMs on disk and the disk layers of its other VMs, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 120))]
    #[serde(default)]
    pub disk_used_mb: u64,
    /// The pools of VMs restored in advance, by template.
    pub pool: BTreeMap<String, PoolState>,
    /// The capacity of the machine.
    pub capacity: Capacity,
    /// The VM engine in use; null if VMs are not available.
    pub engine: Option<EngineReport>,
}

/// The answer of `POST /api/swarm/cleanup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CleanupAnswer {
    /// The number of VMs that were ended.
    #[cfg_attr(feature = "openapi", schema(example = 10))]
    pub terminated: u32,
}

/// The answer of `DELETE /api/swarm/vm/{pid}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeleteAnswer {
    /// The process id that the VM had; null if it was paused to disk.
    #[cfg_attr(feature = "openapi", schema(example = 4242))]
    pub pid: Option<u32>,
    /// The id of the VM.
    pub id: VmId,
    /// Always true: the VM and its resources are gone.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub terminated: bool,
}

/// The answer of `GET /api/swarm/vm/{pid}/console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Console {
    /// The last part of the serial console's output. After a restart of the server, only output since then.
    #[cfg_attr(feature = "openapi", schema(example = "[    0.000000] Linux version 6.1.0\n"))]
    pub console: String,
    /// Whether earlier output was omitted.
    pub truncated: bool,
}

/// Why a VM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EndReason {
    /// By a `DELETE` request.
    Deleted,
    /// By a cleanup request.
    Cleanup,
    /// The time to live expired.
    Expired,
    /// The guest powered itself off.
    Poweroff,
    /// The VMM process ended unexpectedly.
    Crashed,
    /// The kernel killed the VMM process for lack of memory.
    OutOfMemory,
    /// After a restart, the server did not find the VM or could not take it over.
    Lost,
    /// The boot failed, or the guest agent became unreachable.
    Failed,
    /// The attempt at the ticket that the VM was booted for has ended.
    TicketEnded,
    /// It was idle for its `idle_timeout_ms`, and `on_idle` is `end`.
    Idle,
}

impl EndReason {
    /// The value as it is sent, such as `out_of_memory`.
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
            Self::Idle => "idle",
        }
    }
}
