//! Path lookup that never waits for a disk.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::{PathHandle, open::is_on_kernel_filesystem};

impl PathHandle {
    /// Finds the same as [`super::Roots::find`], if all components of the path are in the kernel's cache (openat2(2),
    /// `RESOLVE_CACHED`). `None` in every other case; that method then returns the result or the error.
    pub(crate) fn find_cached(folders: &[PathBuf], path: &Path) -> Option<Self> {
        let below = folders.iter().filter(|folder| path.starts_with(folder));
        let root = below.max_by_key(|folder| folder.components().count())?;
        let relative = path.strip_prefix(root).ok().filter(|way| !way.as_os_str().is_empty())?;
        let cached = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
        let handle = OFlags::PATH | OFlags::CLOEXEC;
        // A root whose path contains a link is not the configured root.
        let named = cached | ResolveFlags::NO_SYMLINKS;
        let root = openat2(CWD, root, handle | OFlags::DIRECTORY, Mode::empty(), named).ok()?;
        let found = openat2(&root, relative, handle, Mode::empty(), cached | ResolveFlags::BENEATH).ok()?;
        if is_on_kernel_filesystem(&found).ok()? {
            return None;
        }
        Self::new(found, path.to_owned()).ok()
    }
}
