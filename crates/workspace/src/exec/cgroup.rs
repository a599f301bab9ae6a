//! The control group of one command. It contains all processes that the command starts, in any session.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

#[derive(Debug)]
pub(super) struct ControlGroup {
    path: PathBuf,
    /// Set once it was removed: a new group of the same name may belong to another command.
    removed: AtomicBool,
}

impl ControlGroup {
    /// Creates a control group below `parent`, which is created as well if it is missing.
    pub(super) fn create(parent: &Path, name: &str) -> io::Result<Self> {
        let path = parent.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(parent)?;
                fs::create_dir(&path)?;
            }
            other => other?,
        }
        // When memory runs out, the whole command is killed: the rest of a fork bomb would only continue. The memory
        // controller is not available on every machine.
        let _ = fs::write(path.join("memory.oom.group"), "1");
        Ok(Self { path, removed: AtomicBool::new(false) })
    }

    /// Opens `cgroup.procs`. A process that writes `0` to it joins the group.
    pub(super) fn open_procs_file(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Kills all processes in the group, including ones that are being forked.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Removes the group. Returns `false` while processes live in it.
    pub(super) fn remove(&self) -> bool {
        if self.removed.load(Ordering::Relaxed) {
            return true;
        }
        let removed = match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        self.removed.store(removed, Ordering::Relaxed);
        removed
    }
}
