//! The memory of the machine and of all VMs, and the end of a VM when it runs out.

use std::time::Duration;

use skep_jail::Jailed;
use skep_keeper_protocol::MachineMemory;
use tokio::task::spawn_blocking;

use super::{Slot, Vmms};
use crate::{
    Error,
    memory::{self, largest_excess},
};

/// How long the next look waits for the memory of a VM that was killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

impl Vmms {
    /// # Errors
    /// `/proc` cannot be read.
    pub(crate) fn memory(&self) -> Result<MachineMemory, Error> {
        memory::read(&self.tree, self.swarm.templates.memory_bytes() + self.captures_bytes())
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
