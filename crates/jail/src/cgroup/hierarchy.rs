//! One cgroup hierarchy, with the file names and formats of its version.

use std::{
    fs::{self, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::CgroupLimits;
use crate::Error;

/// The controllers in use, if available.
pub(super) const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];
/// Period of the CPU quota, in microseconds. The kernel's default.
const PERIOD_US: u64 = 100_000;
/// The files of the CPU quota, in both versions.
const QUOTA_FILES: [&str; 3] = ["cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.max"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The tree's root or one group in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) controllers: Vec<String>,
    pub(super) root: PathBuf,
    /// Whether the parent is delegated by the service manager. It contains the process of the keeper then.
    pub(super) delegated: bool,
}

impl Hierarchy {
    pub(super) fn controls(&self, controller: &str) -> bool {
        self.controllers.iter().any(|own| own == controller)
    }

    /// Creates the root, and enables the controllers in it and in its groups.
    pub(super) fn prepare(&self) -> Result<(), Error> {
        let refused = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| Error::NoCgroup(format!("{path}: {error}"))
        };
        if let (Version::Two, Some(above)) = (self.version, self.root.parent()) {
            if self.delegated {
                // A group that contains processes cannot enable controllers for its children.
                move_to_leaf(above).map_err(refused(above))?;
            }
            enable_controllers(above, &self.controllers).map_err(refused(above))?;
        }
        match fs::create_dir(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(refused(&self.root)(error)),
            _ if self.version == Version::Two => {
                enable_controllers(&self.root, &self.controllers).map_err(refused(&self.root))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn open_procs_file(&self) -> Result<OwnedFd, Error> {
        let path = self.root.join("cgroup.procs");
        let file =
            OpenOptions::new().write(true).open(&path).map_err(Error::io(path.display().to_string()))?;
        Ok(file.into())
    }

    pub(super) fn contains(&self, pid: u32) -> bool {
        i32::try_from(pid).is_ok_and(|pid| members(&self.root).is_ok_and(|members| members.contains(&pid)))
    }

    pub(super) fn set_limits(&self, limits: &CgroupLimits) -> Result<(), Error> {
        for (controller, file, value) in limit_values(self.version, limits) {
            let path = self.root.join(file);
            // A kernel may lack the quota (CONFIG_CFS_BANDWIDTH) although it has the controller.
            let lacking = QUOTA_FILES.contains(&file) && !path.exists();
            if self.controls(controller) && !lacking {
                write(&path, &value).map_err(Error::io(format!("{value} for {}", path.display())))?;
            }
        }
        Ok(())
    }

    pub(super) fn oom_kills(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        value_of_key(&self.read("memory", file)?, "oom_kill")
    }

    pub(super) fn memory_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        self.read("memory", file)?.trim().parse().ok()
    }

    pub(super) fn anonymous_bytes(&self) -> Option<u64> {
        let key = match self.version {
            Version::One => "total_rss",
            Version::Two => "anon",
        };
        value_of_key(&self.read("memory", "memory.stat")?, key)
    }

    pub(super) fn memory_limit_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        self.read("memory", file)?.trim().parse().ok()
    }

    pub(super) fn cpu_us(&self) -> Option<u64> {
        match self.version {
            Version::One => {
                let nanoseconds: u64 = self.read("cpuacct", "cpuacct.usage")?.trim().parse().ok()?;
                Some(nanoseconds / 1000)
            }
            // Exists even without the controller.
            Version::Two => value_of_key(&fs::read_to_string(self.root.join("cpu.stat")).ok()?, "usage_usec"),
        }
    }

    fn read(&self, controller: &str, file: &str) -> Option<String> {
        if self.controls(controller) { fs::read_to_string(self.root.join(file)).ok() } else { None }
    }
}

/// The values to write for these limits: controller, file, value.
fn limit_values(version: Version, limits: &CgroupLimits) -> Vec<(&'static str, &'static str, String)> {
    let CgroupLimits { memory_bytes, pids, cpu_weight, cpu_percent } = limits;
    let quota = cpu_percent.map(|percent| percent * PERIOD_US / 100);
    let mut values = vec![("pids", "pids.max", pids.to_string())];
    match version {
        Version::One => {
            values.push(("memory", "memory.limit_in_bytes", memory_bytes.to_string()));
            // The default is 1024 in version 1 and 100 in version 2.
            values.push(("cpu", "cpu.shares", (cpu_weight * 1024 / 100).max(2).to_string()));
            values.extend(quota.map(|_| ("cpu", "cpu.cfs_period_us", PERIOD_US.to_string())));
            values.extend(quota.map(|quota| ("cpu", "cpu.cfs_quota_us", quota.to_string())));
        }
        Version::Two => {
            values.push(("memory", "memory.max", memory_bytes.to_string()));
            values.push(("cpu", "cpu.weight", cpu_weight.to_string()));
            values.extend(quota.map(|quota| ("cpu", "cpu.max", format!("{quota} {PERIOD_US}"))));
        }
    }
    values
}

/// The value of a line `key value`.
pub(super) fn value_of_key(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    // Not `fs::write`, which would create or truncate the file.
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn enable_controllers(group: &Path, controllers: &[String]) -> io::Result<()> {
    let file = group.join("cgroup.subtree_control");
    let already = fs::read_to_string(&file)?;
    for controller in
        controllers.iter().filter(|wanted| !already.split_whitespace().any(|one| one == *wanted))
    {
        write(&file, &format!("+{controller}"))?;
    }
    Ok(())
}

/// Moves the processes of a delegated group into a child group. They belong to the keeper, as the group does.
fn move_to_leaf(group: &Path) -> io::Result<()> {
    let leaf = group.join("keeper");
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        match write(&leaf.join("cgroup.procs"), pid) {
            // The process ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Kills every process in a group, and with version 2 also those in the groups below it.
pub(super) fn kill(group: &Path) -> Result<(), Error> {
    let switch = group.join("cgroup.kill");
    let outcome = if switch.exists() { write(&switch, "1") } else { kill_each(group, None) };
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("end of the processes in {}", group.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Kills every process in a group but one.
pub(super) fn kill_others(group: &Path, kept: u32) -> Result<(), Error> {
    kill_each(group, Some(kept)).map_err(Error::io(format!("end of processes in {}", group.display())))
}

fn kill_each(group: &Path, kept: Option<u32>) -> io::Result<()> {
    for pid in members(group)? {
        if kept == u32::try_from(pid).ok() {
            continue;
        }
        let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            continue;
        };
        // Checked again: the PID may have been reused between reading the list and opening the pidfd.
        if members(group)?.contains(&pid) && !has_ended(&pidfd)? {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
    Ok(())
}

fn members(group: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_has_its_own_files_in_each_version() {
        let limits = CgroupLimits { memory_bytes: 7, pids: 3, cpu_weight: 100, cpu_percent: Some(150) };
        let lines = |version, limits: &CgroupLimits| -> Vec<String> {
            let values = limit_values(version, limits).into_iter();
            let values = values.filter(|(controller, ..)| *controller == "cpu");
            values.map(|(_, file, value)| format!("{file} {value}")).collect()
        };
        let one = ["cpu.shares 1024", "cpu.cfs_period_us 100000", "cpu.cfs_quota_us 150000"];
        assert_eq!(lines(Version::One, &limits), one);
        assert_eq!(lines(Version::Two, &limits), ["cpu.weight 100", "cpu.max 150000 100000"]);
        let free = CgroupLimits { cpu_percent: None, ..limits };
        assert_eq!(lines(Version::One, &free), ["cpu.shares 1024"]);
        assert_eq!(lines(Version::Two, &free), ["cpu.weight 100"]);
    }

    #[test]
    fn a_value_is_found_by_its_whole_key() {
        let events = "low 0\noom 3\noom_kill 2\noom_group_kill 7\n";
        assert_eq!(value_of_key(events, "oom_kill"), Some(2));
        assert_eq!(value_of_key(events, "oom"), Some(3));
        assert_eq!(value_of_key(events, "max"), None);
        assert_eq!(value_of_key("oom_kill_disable 0\nunder_oom 0\noom_kill 5", "oom_kill"), Some(5));
    }
}
