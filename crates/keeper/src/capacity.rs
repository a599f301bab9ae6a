//! How many VMs this machine holds.

use std::fs;

use rustix::fs::statvfs;

use crate::{DataDir, Error, SwarmOrder, VmLimits};

/// Part of the available memory that VMs may have, in percent. The rest is for the server and the page cache.
const MEMORY_SHARE: u64 = 80;
/// What a VMM takes beside its guest's memory, in MiB. Measured: 43 to 48.
const VMM_MB: u64 = 64;
/// More were never tried.
const MOST_VMS: u64 = 1000;

/// What VMs of an earlier keeper use: it is not available, and yet theirs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InUse {
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
}

/// What VMs may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) max_vms: u32,
    /// In MiB.
    pub(crate) memory_mb: u64,
}

/// # Errors
/// The system does not tell its memory or its disk.
pub(crate) fn measure(order: &SwarmOrder, data_dir: &DataDir, used: InUse) -> Result<Capacity, Error> {
    let meminfo = fs::read_to_string("/proc/meminfo").map_err(Error::io("/proc/meminfo"))?;
    let disk = statvfs(data_dir.path()).map_err(Error::io(data_dir.path().display().to_string()))?;
    let available_mb = available_mb(&meminfo) + (used.memory_bytes >> 20);
    let memory_mb = order.memory_mb.unwrap_or(available_mb * MEMORY_SHARE / 100);
    let disk_mb = (disk.f_bavail * disk.f_frsize + used.disk_bytes) >> 20;
    let max_vms = order.max_vms.unwrap_or_else(|| most_vms(memory_mb, disk_mb, &order.limits));
    Ok(Capacity { max_vms, memory_mb })
}

fn most_vms(memory_mb: u64, disk_mb: u64, each: &VmLimits) -> u32 {
    let by_memory = memory_mb / (each.guest_memory_mb + VMM_MB);
    let by_disk = disk_mb / each.layer_mb.max(1);
    u32::try_from(by_memory.min(by_disk).min(MOST_VMS)).unwrap_or(u32::MAX)
}

fn available_mb(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes: u64 = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0);
    kilobytes / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_thing_decides() {
        let each = VmLimits { guest_memory_mb: 128, layer_mb: 2048, ..VmLimits::default() };
        assert_eq!(most_vms(1920, 1 << 30, &each), 10);
        assert_eq!(most_vms(1 << 30, 20_480, &each), 10);
        assert_eq!(most_vms(1 << 30, 1 << 30, &each), 1000);
        assert_eq!(most_vms(100, 1 << 30, &each), 0);
    }

    #[test]
    fn available_memory_is_read_in_kilobytes() {
        assert_eq!(available_mb("MemTotal: 9 kB\nMemAvailable:   24253440 kB\n"), 23_685);
        assert_eq!(available_mb("MemTotal: 9 kB\n"), 0);
    }
}
