//! Requests that boot, change, pause and end VMs, and their answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{OnIdle, PausedTo, Vm};
use crate::{TicketId, VmId, VmName, egress::EgressPolicy, templates::TemplateName};

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
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::requested_policy_schema))]
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

/// Changes to a VM. Body of `PATCH /api/swarm/vm/{pid}`. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeRequest {
    /// The new time to live from now, in milliseconds; null means that the VM never ends automatically.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, value_type = Option<u64>, minimum = 1, example = 600_000))]
    pub ttl_ms: Option<Option<u64>>,
    /// The time without activity after which `on_idle` happens, in milliseconds, which begins with this change; null means
    /// never.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::patch")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315_360_000_000_u64, value_type = Option<u64>, minimum = 1000, example = 600_000))]
    pub idle_timeout_ms: Option<Option<u64>>,
    /// What happens after `idle_timeout_ms`, whose time begins again with this change.
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
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::requested_policy_schema))]
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
