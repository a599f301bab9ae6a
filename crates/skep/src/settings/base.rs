//! The size of a VM of the template `base`.

use std::{fs, num::NonZero, thread::available_parallelism};

use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};
use skep_api::templates::{GuestSize, MAX_DISK_MB};

const DEFAULT_MEMORY_MB: u64 = 1024;
const DEFAULT_VCPUS: u32 = 2;
const MIN_MEMORY_MB: u64 = 128;
/// Of the machine's memory, in percent. More is not given to all VMs together, if the settings do not say so.
const MEMORY_SHARE: u64 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct BaseSize {
    /// Memory of a VM, in MiB [default: 1024, or what a smaller machine has for VMs]. A change bakes the template again.
    #[arg(long, env = "SKEP_BASE_MEMORY_MB", value_name = "MIB", default_value_t = default_memory_mb(), hide_default_value = true, value_parser = clap::value_parser!(u64).range(MIN_MEMORY_MB..))]
    pub(crate) base_memory_mb: u64,
    /// Virtual processors of a VM [default: 2, or 1 on a machine with one]. A change bakes the template again.
    #[arg(long, env = "SKEP_BASE_VCPUS", value_name = "NUMBER", default_value_t = DEFAULT_VCPUS.min(processors()), hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) base_vcpus: u32,
    /// Size of a VM's disk, in MiB. Only what the VM writes takes space. A change bakes the template again.
    #[arg(long, env = "SKEP_BASE_DISK_MB", value_name = "MIB", default_value = "10240", value_parser = clap::value_parser!(u64).range(128..=MAX_DISK_MB))]
    pub(crate) base_disk_mb: u64,
}

impl BaseSize {
    pub(crate) fn guest(self) -> GuestSize {
        let Self { base_memory_mb: memory_mb, base_vcpus: vcpus, base_disk_mb: disk_mb } = self;
        GuestSize { memory_mb, vcpus, disk_mb }
    }

    /// Checks that this machine can have a VM of this size, with the memory of the setting `memory_mb` for all of them.
    ///
    /// # Errors
    /// A value is out of its range, which the message names.
    pub(crate) fn check_memory(self, memory_mb: Option<u64>) -> anyhow::Result<()> {
        let (most, of_what) = match memory_mb {
            Some(budget) => (budget, "`memory_mb`"),
            None => (memory_share_mb(), "80 % of the memory of this machine"),
        };
        if self.base_memory_mb > most {
            bail!(
                "`base_memory_mb` is {}; a VM has from {MIN_MEMORY_MB} to {most} MiB here, which is {of_what}",
                self.base_memory_mb
            );
        }
        Ok(())
    }

    /// Checks the number of processors likewise.
    ///
    /// # Errors
    /// There are more than this machine has.
    pub(crate) fn check_vcpus(self) -> anyhow::Result<()> {
        let most = processors();
        if self.base_vcpus > most {
            bail!(
                "`base_vcpus` is {}; a VM has from 1 to {most} processors here, as this machine",
                self.base_vcpus
            );
        }
        Ok(())
    }
}

fn default_memory_mb() -> u64 {
    DEFAULT_MEMORY_MB.min(memory_share_mb()).max(MIN_MEMORY_MB)
}

fn memory_share_mb() -> u64 {
    // Without the file there are no VMs either.
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    total.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).map_or(u64::MAX, |kilobytes| kilobytes / 1024)
        / 100
        * MEMORY_SHARE
}

fn processors() -> u32 {
    available_parallelism().map(NonZero::get).ok().and_then(|count| count.try_into().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        base: BaseSize,
    }

    #[test]
    fn a_vm_has_two_processors_1_gib_and_a_disk_of_10_gib_unless_the_machine_is_smaller() {
        let size = Line::try_parse_from(["skep"]).unwrap().base.guest();
        let memory_mb = memory_share_mb().min(1024);
        assert_eq!(size, GuestSize { memory_mb, vcpus: processors().min(2), disk_mb: 10_240 });
    }

    #[test]
    fn a_size_out_of_range_is_refused_with_value_and_range() {
        let size = BaseSize { base_memory_mb: 1024, base_vcpus: 1, base_disk_mb: 2048 };
        size.check_memory(Some(1024)).unwrap();
        size.check_vcpus().unwrap();
        let refused = size.check_memory(Some(500)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "`base_memory_mb` is 1024; a VM has from 128 to 500 MiB here, which is `memory_mb`"
        );
        let huge = BaseSize { base_memory_mb: 1 << 40, base_vcpus: 1 << 20, base_disk_mb: 2048 };
        let refused = huge.check_memory(None).unwrap_err().to_string();
        assert!(refused.contains("128 to") && refused.contains("80 %"), "{refused}");
        let refused = huge.check_vcpus().unwrap_err().to_string();
        assert!(refused.contains("`base_vcpus` is 1048576") && refused.contains("from 1 to"), "{refused}");
    }
}
