//! Cgroups: a tree of skep in each cgroup hierarchy of the machine, with a group for each jailed process.
//!
//! Supports version 2, version 1, and both at once (*hybrid*: limits by version 1, killing by version 2).

mod headroom;
mod hierarchy;
mod mounts;

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::chown},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use headroom::MemoryHeadroom;
use headroom::memory_headroom_above;
use hierarchy::{Hierarchy, Version};

use crate::Error;

/// How long to retry the removal of a group whose processes were killed. Measured: 16 to 48 ms.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The limits of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupLimits {
    pub memory_bytes: u64,
    pub pids: u64,
    /// CPU weight from 1 to 10000. The kernel's default is 100.
    pub cpu_weight: u64,
    /// CPU limit, in percent of one processor. `None`: no limit.
    pub cpu_percent: Option<u64>,
}

/// The cgroups of skep in all hierarchies. A clone refers to the same ones.
#[derive(Debug, Clone)]
pub struct CgroupTree {
    hierarchies: Vec<Hierarchy>,
}

impl CgroupTree {
    /// Creates the tree of this name: below the group that the service manager delegated, otherwise at the top.
    ///
    /// # Errors
    /// Cgroups cannot be created, or a controller for memory or processes is missing; the message has the reason.
    pub fn create(name: &str) -> Result<Self, Error> {
        let hierarchies = mounts::find(name)?;
        if let Err(error) = hierarchies.iter().try_for_each(Hierarchy::prepare) {
            // Only empty groups: a tree of that name may contain other processes.
            for hierarchy in &hierarchies {
                let _ = fs::remove_dir(&hierarchy.root);
            }
            return Err(error);
        }
        let missing: Vec<&str> = ["memory", "pids"]
            .into_iter()
            .filter(|controller| !hierarchies.iter().any(|hierarchy| hierarchy.controls(controller)))
            .collect();
        let tree = Self { hierarchies };
        if missing.is_empty() {
            return Ok(tree);
        }
        let _ = tree.remove();
        Err(Error::NoCgroup(format!(
            "no controller for {} is available; it must be listed in cgroup.controllers of the parent of skep's groups",
            missing.join(" and ")
        )))
    }

    /// How much memory the limits of the groups above the tree leave. `None` if there is no limit.
    pub fn memory_headroom(&self) -> Option<MemoryHeadroom> {
        let above = self.hierarchies.iter().filter(|hierarchy| hierarchy.controls("memory"));
        above.filter_map(|part| memory_headroom_above(&part.root)).min_by_key(|left| left.available_bytes)
    }

    /// The paths of the tree, to be recorded for [`remove_tree`] after a crash.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.root.as_path())
    }

    /// Creates a group.
    ///
    /// # Errors
    /// The name is taken, or the system refused. Nothing is left behind then.
    pub fn create_group(&self, name: &str, limits: &CgroupLimits) -> Result<Cgroup, Error> {
        let mut group = Cgroup { parts: Vec::new() };
        for hierarchy in &self.hierarchies {
            let path = hierarchy.root.join(name);
            let made = fs::create_dir(&path).map_err(Error::io(format!("control group {}", path.display())));
            let made = made.and_then(|()| {
                group.parts.push(Hierarchy { root: path, ..hierarchy.clone() });
                group.parts.last().map_or(Ok(()), |part| part.set_limits(limits))
            });
            if let Err(error) = made {
                let _ = group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    /// Finds an existing group. `None` if it is missing in a hierarchy.
    pub fn find(&self, name: &str) -> Option<Cgroup> {
        let part = |hierarchy: &Hierarchy| Hierarchy { root: hierarchy.root.join(name), ..hierarchy.clone() };
        let parts: Vec<Hierarchy> = self.hierarchies.iter().map(part).collect();
        parts.iter().all(|part| part.root.join("cgroup.procs").exists()).then_some(Cgroup { parts })
    }

    /// Removes a group, and kills its processes.
    ///
    /// # Errors
    /// A process does not end, or the system refused.
    pub fn remove_group(&self, name: &str) -> Result<(), Error> {
        self.paths().try_for_each(|root| remove_tree(&root.join(name)))
    }

    /// Removes all groups for which `kept` is false, and kills their processes.
    ///
    /// # Errors
    /// A process does not end, or the system refused.
    pub fn remove_all_but(&self, kept: impl Fn(&str) -> bool) -> Result<(), Error> {
        for root in self.paths() {
            let failed = || Error::io(format!("groups of {}", root.display()));
            for entry in fs::read_dir(root).map_err(failed())? {
                let entry = entry.map_err(failed())?;
                let is_group = entry.file_type().map_err(failed())?.is_dir();
                if is_group && !entry.file_name().to_str().is_some_and(&kept) {
                    remove_tree(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// Removes the tree and kills all its processes.
    ///
    /// # Errors
    /// A process does not end.
    pub fn remove(&self) -> Result<(), Error> {
        self.paths().try_for_each(remove_tree)
    }
}

/// Removes a tree by its path, if it exists, and kills all its processes.
///
/// # Errors
/// A process does not end, or the system refused.
pub fn remove_tree(root: &Path) -> Result<(), Error> {
    let failed = || format!("removal of the control group {}", root.display());
    if !root.join("cgroup.procs").exists() {
        return Ok(());
    }
    for group in subtree(root).map_err(Error::io(failed()))? {
        hierarchy::kill(&group)?;
        remove_empty(&group)?;
    }
    Ok(())
}

/// The groups of a tree, children before parents.
fn subtree(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            groups.extend(subtree(&entry.path())?);
        }
    }
    groups.push(root.to_owned());
    Ok(groups)
}

/// Removes an empty group. Retries, because killed processes leave their group with a delay, for which no notification
/// exists in both versions.
fn remove_empty(path: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    let mut pause = Duration::from_millis(1);
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                hierarchy::kill(path)?;
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(format!("removal of the control group {}", path.display()))(error));
            }
            _ => return Ok(()),
        }
    }
}

/// The group of one jailed process and its children, in all hierarchies.
#[derive(Debug)]
pub struct Cgroup {
    parts: Vec<Hierarchy>,
}

impl Cgroup {
    /// Opens the `cgroup.procs` files, into which a process writes `0` to join the group.
    ///
    /// # Errors
    /// The group does not exist any more.
    pub fn open_procs_files(&self) -> Result<Vec<OwnedFd>, Error> {
        self.parts.iter().map(Hierarchy::open_procs_file).collect()
    }

    /// Whether the group contains a process, in every hierarchy.
    pub fn contains(&self, pid: u32) -> bool {
        self.parts.iter().all(|part| part.contains(pid))
    }

    /// Kills every process of the group.
    ///
    /// # Errors
    /// The system refused.
    pub fn kill(&self) -> Result<(), Error> {
        // In one hierarchy only, because all contain the same processes. Version 2 kills a whole group atomically.
        let best = self.parts.iter().max_by_key(|part| part.version == Version::Two);
        best.map_or(Ok(()), |part| hierarchy::kill(&part.root))
    }

    /// Kills every process of the group but one. For groups whose processes start no others.
    ///
    /// # Errors
    /// The group does not exist any more.
    pub fn kill_others(&self, kept: u32) -> Result<(), Error> {
        // In one hierarchy only, because all contain the same processes.
        self.parts.first().map_or(Ok(()), |part| hierarchy::kill_others(&part.root, kept))
    }

    /// Kills the processes of the group, waits until it is empty and removes it. Blocks for some tens of milliseconds.
    ///
    /// # Errors
    /// A process does not end.
    pub fn remove(&self) -> Result<(), Error> {
        self.kill()?;
        self.parts.iter().try_for_each(|part| remove_empty(&part.root))
    }

    /// Delegates the version 2 group to a user, who can then create groups below it and move processes between them,
    /// but cannot change its limits. Returns its path, or `None` if the machine has no version 2.
    ///
    /// # Errors
    /// The system refused.
    pub fn delegate_to(&self, uid: u32, gid: u32) -> Result<Option<PathBuf>, Error> {
        let Some(part) = self.parts.iter().find(|part| part.version == Version::Two) else { return Ok(None) };
        for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            let path = part.root.join(name);
            chown(&path, Some(uid), Some(gid)).map_err(Error::io(format!("owner of {}", path.display())))?;
        }
        Ok(Some(part.root.clone()))
    }

    /// Like [`Self::remove`], including the groups below it.
    ///
    /// # Errors
    /// A process does not end.
    pub fn remove_recursively(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| remove_tree(&part.root))
    }

    /// Number of its processes that the OOM killer killed.
    pub fn oom_kills(&self) -> u64 {
        self.first_value(Hierarchy::oom_kills)
    }

    /// Memory charged to the group, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.first_value(Hierarchy::memory_bytes)
    }

    /// Memory of its processes that belongs to no file, in bytes: what its end would free.
    pub fn anonymous_bytes(&self) -> u64 {
        self.first_value(Hierarchy::anonymous_bytes)
    }

    /// The limit of its memory, in bytes. Zero if the group does not exist any more.
    pub fn memory_limit_bytes(&self) -> u64 {
        self.first_value(Hierarchy::memory_limit_bytes)
    }

    /// CPU time of its processes, in microseconds.
    pub fn cpu_us(&self) -> u64 {
        self.first_value(Hierarchy::cpu_us)
    }

    /// The first value that a hierarchy provides. Zero if the group does not exist any more.
    fn first_value(&self, figure: impl Fn(&Hierarchy) -> Option<u64>) -> u64 {
        self.parts.iter().find_map(figure).unwrap_or(0)
    }
}
