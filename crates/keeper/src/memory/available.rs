//! How much memory the machine has left.

use std::{fs, path::Path};

use skep_jail::{CgroupTree, MemoryHeadroom};
use skep_keeper_protocol::MachineMemory;

use crate::Error;

const MEMINFO: &str = "/proc/meminfo";
/// Pressure stall information, see `Documentation/accounting/psi.rst` of the kernel. Not every kernel has it.
const PRESSURE: &str = "/proc/pressure/memory";
/// The same of a control group, in version 2 only.
const GROUP_PRESSURE: &str = "memory.pressure";
/// Above this share of the last 10 s in which all tasks stalled, in percent, the machine is under pressure.
const MAX_STALLED_PERCENT: f64 = 10.0;

/// Reads the memory of the machine. `templates_bytes` is what the memory files that VMs share take.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn read(tree: &CgroupTree, templates_bytes: u64) -> Result<MachineMemory, Error> {
    let meminfo = fs::read_to_string(MEMINFO).map_err(Error::io(MEMINFO))?;
    let least = tightest(&meminfo, tree.memory_headroom());
    let group_files = tree.paths().map(|group| group.join(GROUP_PRESSURE));
    let under_pressure = std::iter::once(Path::new(PRESSURE).to_owned())
        .chain(group_files)
        .find_map(|path| stalled_percent(&fs::read_to_string(path).ok()?))
        .is_some_and(|percent| percent > MAX_STALLED_PERCENT);
    Ok(MachineMemory {
        available_bytes: least.available_bytes,
        total_bytes: least.limit_bytes,
        templates_bytes,
        under_pressure,
    })
}

/// The memory that processes can still take, in bytes.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn available_bytes(tree: &CgroupTree) -> Result<u64, Error> {
    Ok(read(tree, 0)?.available_bytes)
}

/// The machine or the limit above skep, whichever leaves less.
fn tightest(meminfo: &str, above: Option<MemoryHeadroom>) -> MemoryHeadroom {
    let machine = MemoryHeadroom {
        available_bytes: bytes_of(meminfo, "MemAvailable:"),
        limit_bytes: bytes_of(meminfo, "MemTotal:"),
    };
    above.filter(|above| above.available_bytes < machine.available_bytes).unwrap_or(machine)
}

fn bytes_of(meminfo: &str, key: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
    let kilobytes: u64 = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0);
    kilobytes << 10
}

fn stalled_percent(pressure: &str) -> Option<f64> {
    let all_tasks = pressure.lines().find_map(|line| line.strip_prefix("full "))?;
    all_tasks.split_whitespace().find_map(|value| value.strip_prefix("avg10=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n";

    #[test]
    fn the_machine_or_the_limit_above_counts_whichever_leaves_less() {
        let headroom = |available_bytes, limit_bytes| MemoryHeadroom { available_bytes, limit_bytes };
        let machine = headroom(1 << 20, 2 << 20);
        assert_eq!(tightest(MEMINFO, None), machine);
        // A limit above the memory of the machine has no effect.
        assert_eq!(tightest(MEMINFO, Some(headroom(2 << 20, 3 << 20))), machine);
        assert_eq!(tightest(MEMINFO, Some(headroom(9, 10))), headroom(9, 10));
        assert_eq!(tightest("MemTotal: 9 kB\n", None), headroom(0, 9 << 10));
    }

    #[test]
    fn pressure_is_the_share_of_time_in_which_all_tasks_stalled() {
        let text = "some avg10=90.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=2\n";
        assert_eq!(stalled_percent(text), Some(12.5));
        assert_eq!(stalled_percent("some avg10=90.00\n"), None);
    }
}
