//! The control groups of commands, with a limit for all of them together: a fork bomb must leave enough for the agent
//! that kills it.

use std::{fs, io, path::Path};

use crate::error::{Error, StepContext};

/// The parent of the control groups of commands.
pub(crate) const PARENT: &str = "/sys/fs/cgroup/skep";
const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: &str = "+memory +pids";
/// Memory that is reserved for the agent and the kernel, in KiB. With 8 MiB, a guest of 128 MiB whose commands had filled both
/// `/dev/shm` and their limit read the agent's pages again and again, and killed nothing.
const RESERVED_KIB: u64 = 12 << 10;
/// The kernel's own reserve, in KiB, at most. Where transparent huge pages are on, it takes a twentieth of the memory, up
/// to 64 MiB, which commands lack then (`min_free_kbytes` in the kernel's Documentation/admin-guide/sysctl/vm.rst).
const MAX_MIN_FREE_KIB: u64 = 8 << 10;
const MIN_FREE: &str = "/proc/sys/vm/min_free_kbytes";
/// From this size on, in KiB, commands get at least [`LARGE_PERMILLE`] of the memory: what the kernel frees late, such as
/// the pages that each processor keeps for itself, is up to 20 MiB and not yet available after the warm-up.
const LARGE_KIB: u64 = 512 << 10;
const LARGE_PERMILLE: u64 = 915;
/// The approximate memory of the smallest process, including that of the kernel, in KiB.
const PROCESS_KIB: u64 = 256;

/// Creates the parent group and enables its controllers.
pub(crate) fn prepare() -> Result<(), Error> {
    let hand_down = |path: &str| fs::write(Path::new(path).join("cgroup.subtree_control"), CONTROLLERS);
    hand_down(ROOT).context("hand controllers down")?;
    match fs::create_dir(PARENT) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => hand_down(PARENT),
    }
    .context(format!("make {PARENT}"))
}

/// Limits commands to the memory that is available now. Called after the warm-up.
pub(crate) fn limit() -> Result<(), Error> {
    lower_min_free().context(format!("set {MIN_FREE}"))?;
    let meminfo = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let kib = |key: &str| memory_kib(&meminfo, key);
    let memory = memory_limit_kib(kib("MemTotal:"), kib("MemAvailable:")) << 10;
    let processes = (kib("MemTotal:") / PROCESS_KIB).max(64);
    for (file, value) in [("memory.max", memory), ("pids.max", processes)] {
        fs::write(Path::new(PARENT).join(file), value.to_string())
            .context(format!("limit {file} of commands"))?;
    }
    Ok(())
}

fn memory_limit_kib(total: u64, available: u64) -> u64 {
    let measured = available.saturating_sub(RESERVED_KIB).max(RESERVED_KIB);
    if total < LARGE_KIB { measured } else { measured.max(total * LARGE_PERMILLE / 1000) }
}

fn lower_min_free() -> io::Result<()> {
    let now = fs::read_to_string(MIN_FREE)?.trim().parse::<u64>().map_err(io::Error::other)?;
    if now > MAX_MIN_FREE_KIB { fs::write(MIN_FREE, MAX_MIN_FREE_KIB.to_string()) } else { Ok(()) }
}

/// A value of `/proc/meminfo` in KiB; 0 if it is missing.
pub(crate) fn memory_kib(meminfo: &str, key: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{memory_kib, memory_limit_kib};

    #[test]
    fn a_large_guest_gives_its_commands_nine_tenths_and_a_small_one_what_is_available() {
        assert_eq!(memory_limit_kib(96_132, 56_000), 56_000 - 12_288);
        assert_eq!(memory_limit_kib(995_504, 895_000), 910_886);
        assert_eq!(memory_limit_kib(995_504, 930_000), 930_000 - 12_288);
        assert_eq!(memory_limit_kib(20_000, 4_000), 12_288);
    }

    #[test]
    fn memory_is_read_in_kib() {
        let meminfo = "MemTotal:          96132 kB\nMemAvailable:      56000 kB\n";
        assert_eq!(
            (memory_kib(meminfo, "MemTotal:"), memory_kib(meminfo, "MemAvailable:")),
            (96_132, 56_000)
        );
        assert_eq!(memory_kib(meminfo, "SwapTotal:"), 0);
    }
}
