//! The control group of one command: whatever it starts stays inside, in whatever session.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::Pid;

/// A directory of cgroup v2 that one command runs in.
#[derive(Debug)]
pub(super) struct ControlGroup {
    path: PathBuf,
    /// Another of the same name may follow, which is not ours to remove.
    removed: AtomicBool,
}

impl ControlGroup {
    /// Makes a new one below `parent`, and `parent` where it is missing.
    pub(super) fn create(parent: &Path, name: &str) -> io::Result<Self> {
        let path = parent.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(parent)?;
                fs::create_dir(&path)?;
            }
            other => other?,
        }
        // Where memory runs out, all of a command goes: what a fork bomb leaves would only go on. Not every machine hands
        // that controller down.
        let _ = fs::write(path.join("memory.oom.group"), "1");
        Ok(Self { path, removed: AtomicBool::new(false) })
    }

    /// Takes in this process.
    pub(super) fn take_in(&self, process: Pid) -> io::Result<()> {
        self.entrance()?.write_all(process.as_raw_pid().to_string().as_bytes())
    }

    /// The file that takes in whoever writes `0` to it.
    pub(super) fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Ends everything inside, forks under way included.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Removes it. `false` while processes live inside.
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
