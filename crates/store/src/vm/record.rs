//! The record of a VM: how it was booted, its attributes, its pause and its end.

use jiff::Timestamp;
use serde_json::{Map, Value};
use skep_api::{
    AccountId, TemplateId, TicketId, VmId, VmName,
    egress::EgressPolicy,
    swarm::{BootReceipt, EndReason, OnIdle, PausedBy, PausedTo, Vm, VmState},
};

/// A VM as recorded at its boot.
#[derive(Debug, Clone, PartialEq)]
pub struct VmBooted {
    pub id: VmId,
    pub account: AccountId,
    /// Process id of the VMM on the server, or of its last one while the VM is paused to disk.
    pub pid: u32,
    /// Address inside skep's network namespace.
    pub ip: String,
    /// The name of the template at the boot.
    pub template: String,
    pub template_id: TemplateId,
    /// The VM that this one was forked from.
    pub parent: Option<VmId>,
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// When the boot request arrived.
    pub started_at: Timestamp,
    pub ticket: Option<TicketId>,
    /// The guest's id of the command that the VM was booted with.
    pub exec_id: Option<String>,
    pub boot: BootReceipt,
    pub attributes: VmAttributes,
}

impl VmBooted {
    /// Converts to the representation of the API, as a live VM with these attributes.
    pub fn to_api(&self, attributes: VmAttributes, pause: Option<Pause>, uptime: f64) -> Vm {
        let VmAttributes { name, metadata, expires_at, egress, idle_timeout_ms, on_idle } = attributes;
        let paused_to = pause.map(|pause| pause.to);
        Vm {
            pid: if paused_to == Some(PausedTo::Disk) { None } else { Some(self.pid) },
            id: self.id,
            name,
            ip: self.ip.clone(),
            uptime,
            state: if paused_to.is_some() { VmState::Paused } else { VmState::Running },
            paused_to,
            paused_by: pause.map(|pause| pause.by),
            snapshot_state: None,
            snapshot_error: None,
            template: self.template.clone(),
            parent: self.parent,
            started_at: self.started_at,
            resumed_at: None,
            expires_at,
            idle_timeout_ms,
            on_idle,
            egress,
            vcpus: self.vcpus,
            memory_mb: self.memory_mb,
            metadata,
            ticket: self.ticket,
            exec_id: self.exec_id.clone(),
            usage: None,
            boot: self.boot,
            ended_at: None,
            reason: None,
        }
    }
}

/// What callers give at the boot of a VM and may change while it runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VmAttributes {
    /// Unique among the live VMs of the account.
    pub name: Option<VmName>,
    pub metadata: Map<String, Value>,
    /// When the VM ends by itself; `None` means never.
    pub expires_at: Option<Timestamp>,
    pub egress: EgressPolicy,
    /// The time without activity after which `on_idle` happens, in milliseconds; `None` means never.
    pub idle_timeout_ms: Option<u64>,
    pub on_idle: OnIdle,
}

impl VmAttributes {
    /// The attributes after a change.
    #[must_use]
    pub fn with(self, change: VmChange) -> Self {
        Self {
            name: change.name.unwrap_or(self.name),
            metadata: change.metadata.unwrap_or(self.metadata),
            expires_at: change.expires_at.unwrap_or(self.expires_at),
            egress: change.egress.unwrap_or(self.egress),
            idle_timeout_ms: change.idle_timeout_ms.unwrap_or(self.idle_timeout_ms),
            on_idle: change.on_idle.unwrap_or(self.on_idle),
        }
    }
}

/// Changes of [`VmAttributes`]. A field that is `None` stays as it is; the inner `None` removes the value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VmChange {
    pub name: Option<Option<VmName>>,
    /// Replaces all metadata.
    pub metadata: Option<Map<String, Value>>,
    pub expires_at: Option<Option<Timestamp>>,
    pub egress: Option<EgressPolicy>,
    pub idle_timeout_ms: Option<Option<u64>>,
    pub on_idle: Option<OnIdle>,
}

/// Where a VM is paused, and what paused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    pub to: PausedTo,
    pub by: PausedBy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmEnd {
    pub at: Timestamp,
    pub reason: EndReason,
}

/// A VM that is paused to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmOnDisk {
    pub vm: VmId,
    pub name: Option<VmName>,
    /// The keeper's snapshot of it.
    pub snapshot: TemplateId,
}

#[derive(Debug, Clone, PartialEq)]
pub struct VmRecord {
    pub vm: VmBooted,
    /// Whether the end of the command that the VM was booted with has not been recorded yet.
    pub command_runs: bool,
    /// `None` if its processors run, or ran at its end.
    pub pause: Option<Pause>,
    /// The keeper's snapshot of a VM that is paused to disk.
    pub snapshot: Option<TemplateId>,
    /// When it was last resumed from disk.
    pub resumed_at: Option<Timestamp>,
    /// `None` while the VM lives.
    pub end: Option<VmEnd>,
}

impl VmRecord {
    /// Converts to the representation of the API.
    pub fn to_api(&self, now: Timestamp) -> Vm {
        let until = self.end.map_or(now, |end| end.at);
        // The wall clock may have been set back meanwhile.
        let uptime = until.duration_since(self.vm.started_at).as_secs_f64().max(0.0);
        let vm = self.vm.to_api(self.vm.attributes.clone(), self.pause, uptime);
        let vm = Vm { resumed_at: self.resumed_at, ..vm };
        match self.end {
            None => vm,
            Some(VmEnd { at, reason }) => {
                let vm = Vm { state: VmState::Ended, paused_to: None, paused_by: None, ..vm };
                Vm { ended_at: Some(at), reason: Some(reason), ..vm }
            }
        }
    }
}
