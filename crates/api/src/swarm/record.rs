//! The record of a VM.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{OnIdle, PausedBy, PausedTo};
use crate::{TicketId, VmId, VmName, egress::EgressPolicy, templates::TemplateState};

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
    /// `outdated` or `damaged` if the VM is on disk and its memory cannot be used, for example after an update of QEMU or on
    /// another processor. A resume with `"memory": false` starts it again from its disk alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_state: Option<TemplateState>,
    /// Why the memory cannot be used; only in records with `snapshot_state`.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "its VM was booted with qemu 7.2.4, this machine has qemu 8.2.2")
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_error: Option<String>,
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

/// A page of VMs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmList {
    /// Newest first; in a list of ended VMs, the most recently ended first.
    pub vms: Vec<Vm>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
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
