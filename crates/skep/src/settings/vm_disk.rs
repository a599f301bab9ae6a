//! The speed of a VM's disks.

use std::{num::NonZero, ops::RangeInclusive};

use clap::Args;
use serde::{Deserialize, Serialize};
use skep_engine::DiskLimits;

/// 1 TB/s: more than any disk has, and less than QEMU's own limit.
const MAX_MBPS: u64 = 1_000_000;
/// With fewer, no guest starts a command in time.
const OPERATIONS: RangeInclusive<u64> = 100..=10_000_000;

/// The reason for the defaults is in docs/architecture/decisions.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct VmDiskSpeed {
    /// What a VM may read from and write to its disks in a second, in MB (1,000,000 bytes); 0 for no limit. After a quiet
    /// second it may do that of one second at once.
    #[arg(long, env = "SKEP_VM_DISK_MBPS", value_name = "MB", default_value = "200", value_parser = clap::value_parser!(u64).range(0..=MAX_MBPS))]
    pub(crate) vm_disk_mbps: u64,
    /// How many operations a VM may do on its disks in a second, at least 100; 0 for no limit. Bursts as with
    /// `--vm-disk-mbps`.
    #[arg(long, env = "SKEP_VM_DISK_IOPS", value_name = "NUMBER", default_value = "5000", value_parser = operations)]
    pub(crate) vm_disk_iops: u64,
}

impl VmDiskSpeed {
    pub(crate) fn limits(self) -> DiskLimits {
        let Self { vm_disk_mbps, vm_disk_iops } = self;
        DiskLimits { bytes: NonZero::new(vm_disk_mbps * 1_000_000), operations: NonZero::new(vm_disk_iops) }
    }
}

fn operations(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number == 0 || OPERATIONS.contains(number));
    let (least, most) = (OPERATIONS.start(), OPERATIONS.end());
    number.ok_or_else(|| format!("`{text}` is neither 0, for no limit, nor a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_no_limit() {
        let unlimited = VmDiskSpeed { vm_disk_mbps: 0, vm_disk_iops: 0 };
        assert_eq!(unlimited.limits(), DiskLimits::default());
        let limits = VmDiskSpeed { vm_disk_mbps: 3, vm_disk_iops: 100 }.limits();
        assert_eq!((limits.bytes, limits.operations), (NonZero::new(3_000_000), NonZero::new(100)));
    }

    #[test]
    fn a_number_of_operations_with_which_no_guest_works_is_refused_with_the_range() {
        assert_eq!((operations("0"), operations("100")), (Ok(0), Ok(100)));
        for wrong in ["1", "99", "10000001", "-1", "many", ""] {
            let refused = operations(wrong).unwrap_err();
            assert!(
                refused.contains(&format!("`{wrong}`")) && refused.contains("100 to 10000000"),
                "{refused}"
            );
        }
    }
}
