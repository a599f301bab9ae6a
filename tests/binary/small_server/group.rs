//! A control group with a memory limit, and the peak memory of a process.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::LIMIT_BYTES;
use crate::harness::{Skep, unique_name};

/// A control group with a limit of memory, of version 1 or 2.
pub(super) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Moves processes into a group of their own. What they start from then on is in it too.
    pub(super) fn around(pids: &[u32], limit_bytes: u64) -> Self {
        let name = unique_name("memory");
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (folder, limit, swap, swap_bytes) = if v1.join("memory.limit_in_bytes").exists() {
            (v1.join(name), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit_bytes)
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "memory.max", "memory.swap.max", 0)
        };
        fs::create_dir(&folder).unwrap();
        let group = Self(folder);
        fs::write(group.0.join(limit), limit_bytes.to_string()).unwrap();
        // Kernels without swap lack the file.
        let _ = fs::write(group.0.join(swap), swap_bytes.to_string());
        for pid in pids {
            fs::write(group.0.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        group
    }

    /// Processes that were killed because memory ran out.
    pub(super) fn killed(&self) -> u64 {
        let text = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(self.0.join(file)));
        let text = text.into_iter().flatten().collect::<String>();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Processes that still run leave the group, which then can be removed.
        let parent = self.0.parent().map(|parent| parent.join("cgroup.procs"));
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = parent.as_ref().map(|parent| fs::write(parent, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A keeper and its server whose memory is limited.
pub(super) struct LimitedServer {
    pub(super) server: u32,
    pub(super) peak: Peak,
    group: MemoryGroup,
}

impl LimitedServer {
    pub(super) fn of(skep: &Skep) -> Self {
        let server = skep.server_pid().unwrap();
        let group = MemoryGroup::around(&[skep.pid(), server], LIMIT_BYTES);
        Self { server, peak: Peak::of(server), group }
    }

    /// Fails if a process was killed because memory ran out.
    pub(super) fn assert_alive(&self, skep: &Skep) {
        let found = (skep.server_pid(), self.group.killed());
        assert_eq!(found, (Some(self.server), 0), "a process ran out of memory");
    }
}

/// The largest resident size of a process since this was made.
pub(super) struct Peak(u32);

impl Peak {
    pub(super) fn of(pid: u32) -> Self {
        // Resets the largest resident size (proc_pid_clear_refs(5)).
        fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        Self(pid)
    }

    /// In bytes; 0 where the process ended.
    pub(super) fn bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}
