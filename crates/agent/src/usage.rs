//! The resource usage inside the guest.

use std::{fs, io};

use skep_channel::GuestUsage;

/// Reads the current usage.
pub(crate) fn read() -> io::Result<GuestUsage> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let bytes_of = |key| value_in_kilobytes(&memory, key).unwrap_or_default() * 1024;
    Ok(GuestUsage {
        processes: count_processes()?,
        memory_bytes: bytes_of("MemTotal:"),
        memory_available_bytes: bytes_of("MemAvailable:"),
    })
}

fn value_in_kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn count_processes() -> io::Result<u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc")?.filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A thread of the kernel has no executable.
    let programs = pids.filter(|pid| *pid != own && fs::read_link(format!("/proc/{pid}/exe")).is_ok());
    Ok(u32::try_from(programs.count()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_whole_key() {
        let meminfo = "MemTotal:         117084 kB\nMemFree: 7 kB\nMemAvailable:      63112 kB\nHugePages_Total:       0\n";
        assert_eq!(value_in_kilobytes(meminfo, "MemAvailable:"), Some(63_112));
        assert_eq!(value_in_kilobytes(meminfo, "HugePages_Total:"), None);
        assert_eq!(value_in_kilobytes(meminfo, "Available:"), None);
    }

    #[test]
    fn the_memory_of_this_machine_is_read() {
        let usage = read().unwrap();
        assert!(usage.memory_bytes > usage.memory_available_bytes && usage.memory_available_bytes > 0);
    }
}
