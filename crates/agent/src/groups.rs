//! The control groups of commands, and what all of them together may use: less than there is, or a fork bomb would leave
//! nothing to the agent that has to end it.

use std::{fs, io, path::Path};

use crate::error::{Doing, Error};

/// Where the control groups of commands lie.
pub(crate) const PARENT: &str = "/sys/fs/cgroup/skep";
const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: &str = "+memory +pids";
/// Memory that commands leave to the agent and the kernel, in KiB.
const KEPT_KIB: u64 = 8 << 10;
/// A process takes about this much of the kernel's memory and its own, in KiB, however little it does.
const PROCESS_KIB: u64 = 256;

/// Makes the group that those of commands lie in.
pub(crate) fn prepare() -> Result<(), Error> {
    let hand_down = |path: &str| fs::write(Path::new(path).join("cgroup.subtree_control"), CONTROLLERS);
    hand_down(ROOT).doing("hand controllers down")?;
    match fs::create_dir(PARENT) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => hand_down(PARENT),
    }
    .doing(format!("make {PARENT}"))
}

/// Limits commands to what is available now, when all that is to be in memory is there.
pub(crate) fn limit() -> Result<(), Error> {
    let meminfo = fs::read_to_string("/proc/meminfo").doing("read /proc/meminfo")?;
    let kib = |key: &str| memory_kib(&meminfo, key);
    let memory = kib("MemAvailable:").saturating_sub(KEPT_KIB).max(KEPT_KIB) << 10;
    let processes = (kib("MemTotal:") / PROCESS_KIB).max(64);
    for (file, value) in [("memory.max", memory), ("pids.max", processes)] {
        fs::write(Path::new(PARENT).join(file), value.to_string())
            .doing(format!("limit {file} of commands"))?;
    }
    Ok(())
}

/// A line of /proc/meminfo; 0 where there is none.
pub(crate) fn memory_kib(meminfo: &str, key: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::memory_kib;

    #[test]
    fn memory_is_told_in_kib() {
        let meminfo = "MemTotal:          96132 kB\nMemAvailable:      56000 kB\n";
        assert_eq!(
            (memory_kib(meminfo, "MemTotal:"), memory_kib(meminfo, "MemAvailable:")),
            (96_132, 56_000)
        );
        assert_eq!(memory_kib(meminfo, "SwapTotal:"), 0);
    }
}
