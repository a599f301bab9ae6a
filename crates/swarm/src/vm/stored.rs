//! The snapshot that a VM is on disk in, as the server knows it: its size, and whether the VM can continue from it.

use std::mem;

use skep_api::{
    TemplateId,
    swarm::{PausedTo, Vm},
    templates::TemplateState,
};
use skep_keeper_protocol::{TemplateState as Kept, TemplateStatus};
use skep_store::UnusableSnapshot;

use super::VmHandle;

/// The snapshot of a VM on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    /// What its files occupy, in bytes.
    bytes: u64,
    /// Why the VM cannot continue from it. `None` if it can, as far as that is known.
    fault: Option<SnapshotFault>,
    /// Whether this server has recorded the fault.
    is_recorded: bool,
}

/// Why the memory of a snapshot cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SnapshotFault {
    state: TemplateState,
    reason: String,
}

impl Stored {
    fn of(snapshot: &TemplateStatus) -> Self {
        let fault = match &snapshot.state {
            Kept::Outdated { reason } => Some((TemplateState::Outdated, reason)),
            Kept::Damaged { reason } => Some((TemplateState::Damaged, reason)),
            Kept::Building { .. } | Kept::Ready { .. } | Kept::Failed { .. } => None,
        };
        let fault = fault.map(|(state, reason)| SnapshotFault { state, reason: reason.clone() });
        Self { bytes: snapshot.own_bytes, fault, is_recorded: false }
    }
}

impl VmHandle {
    /// The snapshot that the VM is on disk in, or is being paused to.
    pub(crate) fn snapshot(&self) -> Option<TemplateId> {
        self.vmm.lock().snapshot
    }

    pub(super) fn set_snapshot(&self, snapshot: Option<TemplateId>) {
        let mut vmm = self.vmm.lock();
        (vmm.snapshot, vmm.stored) = (snapshot, Stored::default());
    }

    /// What the VM on disk occupies, in bytes.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.vmm.lock().stored.bytes
    }

    /// Takes over what the keeper has of the snapshot of this VM, and logs once if its memory cannot be used. Ignores other
    /// snapshots.
    pub(crate) fn set_stored(&self, snapshot: &TemplateStatus) {
        let mut stored = Stored::of(snapshot);
        let before = {
            let mut vmm = self.vmm.lock();
            if vmm.snapshot != Some(snapshot.template) {
                return;
            }
            stored.is_recorded = vmm.stored.is_recorded && vmm.stored.fault == stored.fault;
            mem::replace(&mut vmm.stored, stored.clone())
        };
        if let Some(SnapshotFault { state, reason }) = stored.fault.filter(|_| before.fault.is_none()) {
            let (vm, template) = (self.facts.id, snapshot.template);
            let name = self.attributes.borrow().name.as_ref().map(|name| format!(" (`{name}`)"));
            let name = name.unwrap_or_default();
            tracing::warn!(
                %vm, %template,
                "VM {vm}{name} is on disk in the snapshot {template}, which is {state} ({reason}): its memory cannot be used; a \
                 resume with `\"memory\": false` (`skep resume --without-memory`) starts the VM from its disk alone"
            );
        }
    }

    /// The snapshot of this VM, if its memory cannot be used and that is not recorded yet.
    pub(crate) fn unusable_snapshot(&self) -> Option<UnusableSnapshot> {
        let vmm = self.vmm.lock();
        if vmm.stored.is_recorded {
            return None;
        }
        let (snapshot, fault) = (vmm.snapshot?, vmm.stored.fault.as_ref()?);
        Some(UnusableSnapshot { vm: self.facts.id, snapshot, reason: fault.reason.clone() })
    }

    /// Notes that the store has this.
    pub(crate) fn mark_recorded(&self, recorded: &UnusableSnapshot) {
        let mut vmm = self.vmm.lock();
        let is_same = vmm.snapshot == Some(recorded.snapshot)
            && vmm.stored.fault.as_ref().is_some_and(|fault| fault.reason == recorded.reason);
        vmm.stored.is_recorded |= is_same;
    }

    /// Adds to a record of this VM why it cannot continue, if it is on disk and its memory cannot be used.
    pub(crate) fn add_snapshot_state(&self, record: Vm) -> Vm {
        let is_on_disk = record.paused_to == Some(PausedTo::Disk);
        let fault = self.vmm.lock().stored.fault.clone().filter(|_| is_on_disk);
        let (snapshot_state, snapshot_error) = fault.map(|fault| (fault.state, fault.reason)).unzip();
        Vm { snapshot_state, snapshot_error, ..record }
    }
}
