//! Control groups, which only root can create.

use std::{
    ffi::OsStr,
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::unique_name;

/// The path of a control group of version 2 that the code under test creates. The drop kills and removes what is in it.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// A path for one test of this crate.
    pub fn of_test(crate_name: &str) -> Self {
        let bases = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
        let base = bases.into_iter().find(|base| base.join("cgroup.procs").exists());
        let base = base.unwrap_or_else(|| panic!("no control groups of version 2 are mounted"));
        Self(base.join(unique_name(crate_name)))
    }
}

impl Deref for ControlGroup {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for ControlGroup {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for ControlGroup {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let Ok(children) = fs::read_dir(&self.0) else { return };
        for child in children.flatten().filter(|entry| entry.path().is_dir()) {
            let _ = fs::write(child.path().join("cgroup.kill"), "1");
            for _ in 0..100 {
                if fs::remove_dir(child.path()).is_ok() {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The control groups of all hierarchies whose names match, without those below them.
pub fn control_groups(matches: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if matches(&entry.file_name().to_string_lossy()) {
                found.push(path);
            } else if depth < 4 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push((path, depth + 1));
            }
        }
    }
    found
}
