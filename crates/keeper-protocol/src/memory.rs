//! The memory of the machine: whether it admits another VM, and why a VM was ended when it ran out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a VM takes right after its boot, in bytes. Measured: 52 to 56 MiB, whatever the memory of its guest.
const BYTES_AFTER_BOOT: u64 = 64 << 20;
/// The share of the memory that stays free for everything but VMs, in percent, and its least amount in bytes.
const RESERVED_PERCENT: u64 = 10;
const MIN_RESERVED_BYTES: u64 = 512 << 20;

/// The memory of the machine, or of the control group above skep if that leaves less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineMemory {
    /// What processes can still take, in bytes. Pages of files count as available.
    pub available_bytes: u64,
    /// All memory of the machine, in bytes.
    pub total_bytes: u64,
    /// Memory in the memory files of templates and of copies of VMs, which VMs share, in bytes.
    pub templates_bytes: u64,
    /// Whether all tasks of the machine stall because they wait for memory.
    pub under_pressure: bool,
}

impl MachineMemory {
    /// The same memory when this much more of it is taken, in bytes.
    #[must_use]
    pub fn without(self, bytes: u64) -> Self {
        Self { available_bytes: self.available_bytes.saturating_sub(bytes), ..self }
    }

    /// The same memory when this much of it is free again, in bytes, and no task waits for memory.
    #[must_use]
    pub fn with_freed(self, bytes: u64) -> Self {
        let available_bytes = self.available_bytes.saturating_add(bytes);
        Self { available_bytes, under_pressure: false, ..self }
    }

    /// What stays free for everything but VMs, in bytes.
    pub fn reserved_bytes(&self) -> u64 {
        (self.total_bytes * RESERVED_PERCENT / 100).max(MIN_RESERVED_BYTES)
    }

    /// Whether there is memory for this number of further VMs.
    pub fn admits(&self, vms: u32) -> bool {
        let needed = self.reserved_bytes() + u64::from(vms) * BYTES_AFTER_BOOT;
        !self.under_pressure && self.available_bytes >= needed
    }

    /// Whether there is memory for the copy by which a VM is paused to disk. Half of what is reserved stays free: the pause
    /// frees more than the copy takes.
    pub fn admits_pause(&self, copy_bytes: u64) -> bool {
        self.available_bytes >= self.reserved_bytes() / 2 + copy_bytes
    }

    /// Whether VMs may be parked: somewhat above the limit for boots, so that they are not ended at once. Below it, VMs that
    /// are idle go to disk.
    pub fn admits_parking(&self) -> bool {
        !self.under_pressure && self.available_bytes >= self.reserved_bytes() * 3 / 2 + BYTES_AFTER_BOOT
    }
}

/// Why a VM was ended because memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfMemory {
    /// The kernel killed the VMM, at the limit of its control group or of the machine.
    Kernel,
    /// The keeper ended the VM before the kernel had to choose a process. In MiB. The VM held its own memory and its part of
    /// the delta that it shared.
    Guard { held_mb: u64, share_mb: u64, available_mb: u64 },
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => write!(f, "the kernel killed its VMM for memory"),
            Self::Guard { held_mb, share_mb, available_mb } => write!(
                f,
                "only {available_mb} MiB of the machine's memory were available, and of all VMs this one exceeded its share most: it \
                 held {held_mb} MiB, its share was {share_mb} MiB"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(available_mb: u64, total_mb: u64) -> MachineMemory {
        MachineMemory {
            available_bytes: available_mb << 20,
            total_bytes: total_mb << 20,
            templates_bytes: 0,
            under_pressure: false,
        }
    }

    #[test]
    fn a_tenth_of_the_memory_stays_free_and_not_less_than_512_mb() {
        assert!(memory(1064, 10_000).admits(1) && !memory(1063, 10_000).admits(1));
        assert!(memory(1640, 10_000).admits(10) && !memory(1639, 10_000).admits(10));
        assert!(memory(576, 1000).admits(1) && !memory(575, 1000).admits(1));
        assert!(!MachineMemory { under_pressure: true, ..memory(10_000, 10_000) }.admits(0));
    }

    #[test]
    fn what_may_be_parked_is_not_ended_at_once() {
        for available_mb in 0..4000 {
            let memory = memory(available_mb, 10_000);
            assert!(!memory.admits_parking() || memory.admits(0), "{available_mb}");
        }
        assert!(memory(1564, 10_000).admits_parking() && !memory(1563, 10_000).admits_parking());
        assert!(memory(600, 10_000).admits_pause(100 << 20) && !memory(599, 10_000).admits_pause(100 << 20));
        assert!(memory(1000, 10_000).admits(0) && !memory(999, 10_000).admits(0));
    }
}
