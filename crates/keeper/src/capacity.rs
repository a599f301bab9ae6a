//! How many VMs this machine can run, and whether it has the resources for one more now.

use std::fs;

use rustix::fs::statvfs;
use skep_jail::CgroupTree;

use crate::{DataDir, Error, SwarmConfig, VmLimits};

/// Share of the available memory for VMs, in percent. The rest is for the server and the page cache.
const MEMORY_SHARE: u64 = 80;
/// Memory that a launch must leave free, in MiB, so that the OOM killer of the kernel does not kill other processes.
const RESERVED_MEMORY_MB: u64 = 256;
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
    pub(crate) memory_bytes: u64,
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
pub(crate) fn measure(
    order: &SwarmConfig,
    data_dir: &DataDir,
    tree: &CgroupTree,
    used: InUse,
) -> Result<Capacity, Error> {
    let free = FreeResources::now(data_dir)?;
    let available_mb = free.memory_mb + (used.memory_bytes >> 20);
    let memory_mb =
        order.memory_mb.unwrap_or_else(|| memory_share_mb(available_mb, tree.memory_limit_bytes()));
    let promises_mb = overcommitted(memory_mb, order.memory_overcommit);
    let max_vms = order.max_vms.unwrap_or_else(|| vm_capacity(promises_mb, &order.limits));
    Ok(Capacity { max_vms, memory_mb, promises_mb })
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

/// Respects the limit of a container, which may have less memory than the machine.
fn memory_share_mb(available_mb: u64, limit_bytes: Option<u64>) -> u64 {
    let limit_mb = limit_bytes.map_or(u64::MAX, |bytes| bytes >> 20);
    available_mb.min(limit_mb) * MEMORY_SHARE / 100
}

/// Refuses a launch that would take the reserve of the machine. Other processes may use resources by now that were free
/// when the capacity was measured.
///
/// # Errors
/// [`Error::NoMemory`], [`Error::NoDisk`].
pub(crate) fn check_now(data_dir: &DataDir, each: &VmLimits) -> Result<(), Error> {
    FreeResources::now(data_dir)?.check(each)
}

/// The free resources of the machine, in MiB.
#[derive(Debug, Clone, Copy)]
struct FreeResources {
    memory_mb: u64,
    disk_mb: u64,
    /// Size of the disk below the data directory.
    disk_size_mb: u64,
}

impl FreeResources {
    fn now(data_dir: &DataDir) -> Result<Self, Error> {
        let meminfo = fs::read_to_string("/proc/meminfo").map_err(Error::io("/proc/meminfo"))?;
        let disk = statvfs(data_dir.path()).map_err(Error::io(data_dir.path().display().to_string()))?;
        Ok(Self {
            memory_mb: available_mb(&meminfo),
            disk_mb: (disk.f_bavail * disk.f_frsize) >> 20,
            disk_size_mb: (disk.f_blocks * disk.f_frsize) >> 20,
        })
    }

    fn check(self, each: &VmLimits) -> Result<(), Error> {
        let wanted_mb = each.promise_mb();
        if self.memory_mb < wanted_mb + RESERVED_MEMORY_MB {
            return Err(Error::NoMemory { free_mb: self.memory_mb, wanted_mb, kept_mb: RESERVED_MEMORY_MB });
        }
        let share_mb = self.disk_size_mb * RESERVED_DISK_SHARE / 100;
        let kept_mb = share_mb.clamp(MIN_RESERVED_DISK_MB, MAX_RESERVED_DISK_MB);
        if self.disk_mb < kept_mb {
            return Err(Error::NoDisk { free_mb: self.disk_mb, kept_mb });
        }
        Ok(())
    }
}

fn vm_capacity(promises_mb: u64, each: &VmLimits) -> u32 {
    u32::try_from((promises_mb / each.promise_mb()).min(MAX_VMS)).unwrap_or(u32::MAX)
}

fn available_mb(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes: u64 = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0);
    kilobytes / 1024
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use skep_api::ErrorCode;
    use skep_jail::cgroup::memory_limit_above;

    use super::*;

    /// The share of 16 GiB for VMs in nested groups with these limits, the outermost first.
    fn share_in(file: &str, limits: &[&str]) -> u64 {
        let machine = tempfile::tempdir().unwrap();
        let mut group = machine.path().to_owned();
        for (depth, limit) in limits.iter().enumerate() {
            group.push(format!("group{depth}"));
            fs::create_dir(&group).unwrap();
            fs::write(group.join(file), format!("{limit}\n")).unwrap();
        }
        memory_share_mb(16 << 10, memory_limit_above(&group.join("skep")))
    }

    #[test]
    fn a_container_gives_what_its_tightest_limit_does() {
        const GIB: u64 = 1 << 30;
        let (one, four) = (GIB.to_string(), (4 * GIB).to_string());
        let share_of = |gib: u64| (gib << 10) * MEMORY_SHARE / 100;
        for (file, none) in [("memory.max", "max"), ("memory.limit_in_bytes", "9223372036854771712")] {
            assert_eq!(share_in(file, &[none, none]), share_of(16), "{file}");
            assert_eq!(share_in(file, &[none, &four]), share_of(4), "{file}");
            assert_eq!(share_in(file, &[&one, &four]), share_of(1), "{file}: the tighter one above");
            assert_eq!(share_in(file, &[&four, none, &one, none]), share_of(1), "{file}: in between");
            // A limit above the memory of the machine has no effect.
            assert_eq!(share_in(file, &[&(64 * GIB).to_string()]), share_of(16), "{file}");
        }
        assert_eq!(memory_limit_above(Path::new("/")), None);
    }

    /// Only the limits of the groups above count.
    #[test]
    fn a_limit_of_the_group_itself_does_not_count() {
        let group = tempfile::tempdir().unwrap();
        fs::write(group.path().join("memory.max"), "1073741824").unwrap();
        assert_eq!(memory_limit_above(group.path()), None);
        assert_eq!(memory_limit_above(&group.path().join("below")), Some(1 << 30));
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
    fn a_launch_leaves_the_machine_what_it_needs() {
        let each = VmLimits::new(1024, 128);
        let check = |memory_mb, disk_mb, disk_size_mb| {
            FreeResources { memory_mb, disk_mb, disk_size_mb }.check(&each)
        };
        check(1408, 2000, 40_000).unwrap();
        let memory = check(1407, 2000, 40_000).unwrap_err();
        assert!(memory.to_string().contains("1407 MiB") && memory.to_string().contains("1152"), "{memory}");
        // 5 % of the disk, but not less than 1 GiB and not more than 5 GiB.
        let disks = [(1023, 60, "1024 MiB"), (1999, 40_000, "2000 MiB"), (5119, 1 << 20, "5120 MiB")];
        for (free_mb, size_mb, kept) in disks {
            let disk = check(1408, free_mb, size_mb).unwrap_err();
            assert!(
                disk.to_string().contains(kept) && disk.to_string().contains(&free_mb.to_string()),
                "{disk}"
            );
            assert_eq!(disk.code(), ErrorCode::NoCapacity);
            check(1408, free_mb + 1, size_mb).unwrap();
        }
        assert_eq!(memory.code(), ErrorCode::NoCapacity);
    }

    #[test]
    fn available_memory_is_read_in_kilobytes() {
        assert_eq!(available_mb("MemTotal: 9 kB\nMemAvailable:   24253440 kB\n"), 23_685);
        assert_eq!(available_mb("MemTotal: 9 kB\n"), 0);
    }
}
