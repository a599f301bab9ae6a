//! The memory of the machine and of all VMs, and the end of a VM when it runs out.

use std::time::Duration;

use skep_api::Failure;
use skep_jail::Jailed;
use skep_keeper_protocol::MachineMemory;
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{
    Error, FileId, capacity,
    memory::{self, MemoryAdmission, deltas_bytes, largest_excess},
};

/// How long the next look waits for the memory of a VM that was killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

impl Vmms {
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn memory(&self) -> Result<MachineMemory, Error> {
        // Before the VMs: the delta of a capture that is dropped in between is counted here alone.
        let (captures_bytes, counted) = self.captures_memory();
        let others_bytes = captures_bytes + self.deltas_of_vms_bytes(counted);
        memory::read(&self.tree, self.swarm.templates.memory_bytes() + others_bytes)
    }

    /// What the deltas take that only VMs hold, in bytes. `of_captures`: those of captures.
    fn deltas_of_vms_bytes(&self, of_captures: Vec<FileId>) -> u64 {
        let delta = |slot: &Slot| match slot {
            Slot::Running(resources) => resources.delta(),
            Slot::Busy => None,
        };
        let of_vms: Vec<_> = self.slots().values().filter_map(delta).collect();
        let of_templates = self.swarm.templates.deltas().into_iter();
        deltas_bytes(of_vms, &of_templates.chain(of_captures).collect())
    }

    /// The memory of the machine without what was admitted and is not taken yet.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn memory_after_admissions(&self) -> Result<MachineMemory, Error> {
        let admitted = self.admissions.bytes();
        Ok(self.memory()?.without(admitted))
    }

    /// Admits the memory that the load of a template takes, if the machine has it for that and for a VM.
    ///
    /// # Errors
    /// [`ErrorCode::NoCapacity`](skep_api::ErrorCode::NoCapacity).
    pub(super) fn admit_load(&self, bytes: u64) -> Result<MemoryAdmission, Failure> {
        let admission = self
            .admissions
            .admit(bytes, |admitted| capacity::check_memory_after(self.memory()?.without(admitted), bytes));
        Ok(admission?)
    }

    /// Kills the VM that exceeds its share of the memory most, and waits until its memory is free. Its resources stay
    /// until the server requests its end. Returns whether there was one.
    pub(crate) async fn end_one_for_memory(&self, memory: &MachineMemory) -> bool {
        let Some(killed) = self.kill_largest_excess(memory) else { return false };
        // If it does not exit in time, the next look finds out.
        let _ = spawn_blocking(move || killed.wait(EXIT_TIMEOUT)).await;
        true
    }

    fn kill_largest_excess(&self, memory: &MachineMemory) -> Option<Jailed> {
        let mut slots = self.slots();
        let running = slots.iter().filter_map(|(vm, slot)| match slot {
            Slot::Running(resources) => Some((*vm, resources.memory_share()?)),
            Slot::Busy => None,
        });
        let running: Vec<_> = running.collect();
        let overhead_bytes = self.swarm.limits.overhead_mb << 20;
        let promised_bytes = running.iter().map(|(_, vm)| vm.guest_bytes + overhead_bytes).sum();
        let (vm, reason) = largest_excess(&running, self.capacity.memory_mb << 20, promised_bytes, memory)?;
        let Some(Slot::Running(resources)) = slots.get_mut(&vm) else { return None };
        match resources.kill_for_memory(reason) {
            Ok(killed) => {
                tracing::warn!(%vm, "VM {vm} is ended: {reason}");
                killed
            }
            Err(error) => {
                tracing::error!(%vm, %error, "VM {vm} should end because memory ran out, and does not: {error}");
                None
            }
        }
    }
}
