//! How many VMs this machine can run, and whether it has the resources for one more now.

use std::{num::NonZero, thread::available_parallelism};

use rustix::fs::statvfs;
use skep_api::{
    ErrorCode, Failure,
    templates::{GuestSize, MAX_DISK_MB, MIN_MEMORY_MB},
};
use skep_jail::CgroupTree;
use skep_keeper_protocol::{AfterCapture, MachineMemory};

use crate::{DataDir, Error, SwarmConfig, VmLimits, memory};

/// Share of the available memory for VMs, in percent. The rest is for the server and the page cache.
const MEMORY_SHARE: u64 = 80;
/// Disk space that a launch must leave free, because the store writes to the same disk: this share of the disk, in
/// percent, within these limits in MiB. Layers count by what guests have written: most write little, and a guest that
/// finds the disk full gets an error.
const RESERVED_DISK_SHARE: u64 = 5;
const MIN_RESERVED_DISK_MB: u64 = 1 << 10;
const MAX_RESERVED_DISK_MB: u64 = 5 << 10;
/// Upper limit of VMs; more have not been tested.
const MAX_VMS: u64 = 1000;

/// Resources that adopted VMs already use. They are not free, but count as available for VMs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InUse {
    /// Anonymous memory, in bytes.
    pub(crate) held_bytes: u64,
}

/// The resources for all VMs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) max_vms: u32,
    /// In MiB.
    pub(crate) memory_mb: u64,
    /// The memory that VMs may be promised in total, in MiB.
    pub(crate) promises_mb: u64,
}

/// # Errors
/// The free memory or disk space cannot be read.
pub(crate) fn measure(order: &SwarmConfig, tree: &CgroupTree, used: InUse) -> Result<Capacity, Error> {
    let available_mb = (memory::available_bytes(tree)? + used.held_bytes) >> 20;
    let memory_mb = memory_for_vms(order.memory_mb, available_mb);
    let promises_mb = overcommitted(memory_mb, order.memory_overcommit);
    let max_vms = order.max_vms.unwrap_or_else(|| vm_capacity(promises_mb, &order.limits));
    Ok(Capacity { max_vms, memory_mb, promises_mb })
}

/// The memory for VMs in MiB: the configured amount, or a share of the available memory.
fn memory_for_vms(configured_mb: Option<u64>, available_mb: u64) -> u64 {
    configured_mb.unwrap_or(available_mb * MEMORY_SHARE / 100)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact up to 2^53 MiB, and the settings allow no negative number"
)]
fn overcommitted(memory_mb: u64, overcommit: f64) -> u64 {
    (memory_mb as f64 * overcommit) as u64
}

/// Refuses a launch that would take the reserve of the machine. Other processes may use resources by now that were free
/// when the capacity was measured.
///
/// # Errors
/// [`Error::NoMemory`], [`Error::NoDisk`].
pub(crate) fn check_now(data_dir: &DataDir, memory: &MachineMemory) -> Result<(), Error> {
    check_memory(memory)?;
    check_disk_now(data_dir)
}

/// Refuses a guest that this machine, with this memory for VMs in MiB, cannot run. The server refuses it too, and names the field
/// of the request.
///
/// # Errors
/// [`ErrorCode::InvalidValue`].
pub(crate) fn check_size(size: GuestSize, memory_mb: u64) -> Result<(), Failure> {
    let processors = available_parallelism().map_or(1, NonZero::get) as u64;
    let ranges = [
        ("memory_mb", size.memory_mb, MIN_MEMORY_MB..=memory_mb),
        ("vcpus", u64::from(size.vcpus), 1..=processors),
        ("disk_mb", size.disk_mb, 1..=MAX_DISK_MB),
    ];
    match ranges.into_iter().find(|(_, value, range)| !range.contains(value)) {
        None => Ok(()),
        Some((name, value, range)) => {
            let (least, most) = range.into_inner();
            let message =
                format!("{name} is {value}, and a guest has from {least} to {most} on this machine");
            Err(Failure::new(ErrorCode::InvalidValue, message))
        }
    }
}

fn check_memory(memory: &MachineMemory) -> Result<(), Error> {
    if !memory.admits(1) {
        return Err(Error::NoMemory {
            available_mb: memory.available_bytes >> 20,
            kept_mb: memory.reserved_bytes() >> 20,
        });
    }
    Ok(())
}

/// Refuses a copy that takes this many bytes if it would take the reserve of the machine. A pause may take a part of that, because
/// its VM ends.
///
/// # Errors
/// [`Error::NoMemory`].
pub(crate) fn check_copy_memory(memory: MachineMemory, bytes: u64, then: AfterCapture) -> Result<(), Error> {
    if then == AfterCapture::Ends && memory.admits_pause(bytes) {
        return Ok(());
    }
    check_memory_after(memory, bytes)
}

/// Refuses what takes this many bytes of memory if that and a VM would take the reserve of the machine.
///
/// # Errors
/// [`Error::NoMemory`].
pub(crate) fn check_memory_after(memory: MachineMemory, bytes: u64) -> Result<(), Error> {
    check_memory(&memory.without(bytes))
}

/// Checks that enough of the disk is free.
///
/// # Errors
/// [`Error::NoDisk`].
pub(crate) fn check_disk_now(data_dir: &DataDir) -> Result<(), Error> {
    let disk = statvfs(data_dir.path()).map_err(Error::io(data_dir.path().display().to_string()))?;
    let disk = FreeDisk {
        free_mb: (disk.f_bavail * disk.f_frsize) >> 20,
        size_mb: (disk.f_blocks * disk.f_frsize) >> 20,
    };
    disk.check()
}

/// The disk below the data directory, in MiB.
#[derive(Debug, Clone, Copy)]
struct FreeDisk {
    free_mb: u64,
    size_mb: u64,
}

impl FreeDisk {
    fn check(self) -> Result<(), Error> {
        let share_mb = self.size_mb * RESERVED_DISK_SHARE / 100;
        let kept_mb = share_mb.clamp(MIN_RESERVED_DISK_MB, MAX_RESERVED_DISK_MB);
        if self.free_mb < kept_mb {
            return Err(Error::NoDisk { free_mb: self.free_mb, kept_mb });
        }
        Ok(())
    }
}

fn vm_capacity(promises_mb: u64, each: &VmLimits) -> u32 {
    u32::try_from((promises_mb / each.promise_mb()).min(MAX_VMS)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use skep_api::ErrorCode;

    use super::*;

    #[test]
    fn vms_get_four_fifths_of_the_available_memory_unless_the_settings_say_how_much() {
        assert_eq!(memory_for_vms(None, 1000), 800);
        assert_eq!((memory_for_vms(Some(300), 1000), memory_for_vms(Some(2000), 1000)), (300, 2000));
    }

    #[test]
    fn as_many_vms_as_can_be_promised_their_memory() {
        let each = VmLimits::new(1024, 128);
        assert_eq!(vm_capacity(11_520, &each), 10);
        assert_eq!(vm_capacity(11_519, &each), 9);
        assert_eq!(vm_capacity(1 << 40, &each), 1000);
        assert_eq!(vm_capacity(100, &each), 0);
        assert_eq!((overcommitted(1000, 4.0), overcommitted(1000, 1.5)), (4000, 1500));
    }

    #[test]
    fn a_launch_leaves_the_machine_its_disk() {
        // 5 % of the disk, but not less than 1 GiB and not more than 5 GiB.
        let disks = [(1023, 60, "1024 MiB"), (1999, 40_000, "2000 MiB"), (5119, 1 << 20, "5120 MiB")];
        for (free_mb, size_mb, kept) in disks {
            let refused = FreeDisk { free_mb, size_mb }.check().unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(kept) && text.contains(&free_mb.to_string()), "{text}");
            assert_eq!(refused.code(), ErrorCode::NoCapacity);
            FreeDisk { free_mb: free_mb + 1, size_mb }.check().unwrap();
        }
    }

    #[test]
    fn a_launch_leaves_the_machine_its_memory() {
        let data_dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(data_dir.path()).unwrap();
        let memory = MachineMemory {
            available_bytes: 1000 << 20,
            total_bytes: 10_000 << 20,
            templates_bytes: 0,
            under_pressure: false,
        };
        let refused = check_now(&data_dir, &memory).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("1000 MiB of memory are available") && text.contains("1000 MiB are reserved"),
            "{text}"
        );
        assert_eq!(refused.code(), ErrorCode::NoCapacity);
    }
}
