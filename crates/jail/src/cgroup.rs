//! Control groups: a tree of ours in each hierarchy that this machine has, and a group in it for each process.
//!
//! Version 2, version 1, or both at once (*hybrid*: limits by version 1, killing by version 2).

mod hierarchy;
mod mounts;

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::chown},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use hierarchy::memory_limit_above;
use hierarchy::{Hierarchy, Version};

use crate::Error;

/// How long an emptied group may take to let go. Measured: 16 to 48 ms.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the processes of one group may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Weight against other groups, 1 to 10000; 100 is ordinary.
    pub cpu_weight: u64,
    /// The most of the processors, in percent of one; `None`: all that is idle.
    pub cpu_percent: Option<u64>,
}

/// Our part of the machine's control groups.
#[derive(Debug)]
pub struct Tree {
    hierarchies: Vec<Hierarchy>,
}

impl Tree {
    /// Makes the tree of that name: in the part that the service manager delegated to us, else at the top.
    ///
    /// # Errors
    /// This machine lets us make none, or a controller for memory or processes is missing; the message says why.
    pub fn create(name: &str) -> Result<Self, Error> {
        let hierarchies = mounts::find(name)?;
        if let Err(error) = hierarchies.iter().try_for_each(Hierarchy::prepare) {
            // Only what is empty: another process may live in a tree of that name.
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
            "no controller for {} may be used; it must stand in cgroup.controllers where skep makes its groups",
            missing.join(" and ")
        )))
    }

    /// The memory that all of it may use, in bytes, where a limit is set above it, as in a container.
    pub fn memory_limit_bytes(&self) -> Option<u64> {
        self.hierarchies.iter().filter_map(Hierarchy::memory_limit_above).min()
    }

    /// Where the tree lies, to be remembered for [`remove_tree`] after a crash.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.root.as_path())
    }

    /// Makes a group.
    ///
    /// # Errors
    /// The name is taken, or the system refused. Nothing is left then.
    pub fn group(&self, name: &str, limits: &CgroupLimits) -> Result<Cgroup, Error> {
        let mut group = Cgroup { parts: Vec::new() };
        for hierarchy in &self.hierarchies {
            let path = hierarchy.root.join(name);
            let made = fs::create_dir(&path).map_err(Error::io(format!("control group {}", path.display())));
            let made = made.and_then(|()| {
                group.parts.push(Hierarchy { root: path, ..hierarchy.clone() });
                group.parts.last().map_or(Ok(()), |part| part.limit(limits))
            });
            if let Err(error) = made {
                let _ = group.remove();
                return Err(error);
            }
        }
        Ok(group)
    }

    /// A group that was made before, by this process or another. `None`: it is not in every hierarchy.
    pub fn find(&self, name: &str) -> Option<Cgroup> {
        let part = |hierarchy: &Hierarchy| Hierarchy { root: hierarchy.root.join(name), ..hierarchy.clone() };
        let parts: Vec<Hierarchy> = self.hierarchies.iter().map(part).collect();
        parts.iter().all(|part| part.root.join("cgroup.procs").exists()).then_some(Cgroup { parts })
    }

    /// Kills every process in the groups that are not to be kept, and removes those groups.
    ///
    /// # Errors
    /// A process does not die, or the system refused.
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

    /// Kills every process in the tree and removes it.
    ///
    /// # Errors
    /// A process does not die.
    pub fn remove(&self) -> Result<(), Error> {
        self.paths().try_for_each(remove_tree)
    }
}

/// Kills every process in a tree and removes it, whoever made it. One that does not exist is no error.
///
/// # Errors
/// A process does not die, or the system refused.
pub fn remove_tree(root: &Path) -> Result<(), Error> {
    let failed = || format!("removal of the control group {}", root.display());
    if !root.join("cgroup.procs").exists() {
        return Ok(());
    }
    for group in below(root).map_err(Error::io(failed()))? {
        hierarchy::kill(&group)?;
        remove_empty(&group)?;
    }
    Ok(())
}

/// The groups of a tree, the innermost first, its root last.
fn below(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            groups.extend(below(&entry.path())?);
        }
    }
    groups.push(root.to_owned());
    Ok(groups)
}

/// Killed processes leave their group some time after they are gone for everybody else; nothing tells of it in both
/// versions, so it is tried again.
fn remove_empty(path: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
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

/// The group of one process and its children.
#[derive(Debug)]
pub struct Cgroup {
    parts: Vec<Hierarchy>,
}

impl Cgroup {
    /// The files into which a process writes `0` to join.
    ///
    /// # Errors
    /// The group is gone.
    pub fn doors(&self) -> Result<Vec<OwnedFd>, Error> {
        self.parts.iter().map(Hierarchy::door).collect()
    }

    /// Whether a process is in it, in every hierarchy.
    pub fn holds(&self, pid: u32) -> bool {
        self.parts.iter().all(|part| part.holds(pid))
    }

    /// Kills every process in it.
    ///
    /// # Errors
    /// The system refused.
    pub fn kill(&self) -> Result<(), Error> {
        // Killed once: all parts hold the same processes, and version 2 can do it in one go.
        let best = self.parts.iter().max_by_key(|part| part.version == Version::Two);
        best.map_or(Ok(()), |part| hierarchy::kill(&part.root))
    }

    /// Kills what is in it, waits until it is empty and removes it. Blocks for some tens of milliseconds.
    ///
    /// # Errors
    /// A process does not die.
    pub fn remove(&self) -> Result<(), Error> {
        self.kill()?;
        self.parts.iter().try_for_each(|part| remove_empty(&part.root))
    }

    /// Gives its folder of version 2 to a user, who may then make groups below it and move processes between them, and
    /// change no limit. `None`: this machine has no version 2.
    ///
    /// # Errors
    /// The system refused.
    pub fn give_to(&self, uid: u32, gid: u32) -> Result<Option<PathBuf>, Error> {
        let Some(part) = self.parts.iter().find(|part| part.version == Version::Two) else { return Ok(None) };
        for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            let path = part.root.join(name);
            chown(&path, Some(uid), Some(gid)).map_err(Error::io(format!("owner of {}", path.display())))?;
        }
        Ok(Some(part.root.clone()))
    }

    /// The same as [`Self::remove`], with the groups that were made below it.
    ///
    /// # Errors
    /// A process does not die.
    pub fn remove_with_all_below(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| remove_tree(&part.root))
    }

    /// How many of its processes the kernel killed because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        self.first(Hierarchy::oom_kills)
    }

    /// Memory charged to it, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.first(Hierarchy::memory_bytes)
    }

    /// Processor time of its processes, in microseconds.
    pub fn cpu_us(&self) -> u64 {
        self.first(Hierarchy::cpu_us)
    }

    /// A figure that one of the hierarchies knows. Zero where the group is gone.
    fn first(&self, figure: impl Fn(&Hierarchy) -> Option<u64>) -> u64 {
        self.parts.iter().find_map(figure).unwrap_or(0)
    }
}
