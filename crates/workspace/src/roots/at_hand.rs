//! Path lookup that never waits for a disk.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::{Found, open::is_the_kernels_own};

impl Found {
    /// Finds the same as [`super::Roots::find`], if all components of the path are in the kernel's cache (openat2(2),
    /// `RESOLVE_CACHED`). `None` in every other case; that method then returns the result or the error.
    pub(crate) fn at_hand(folders: &[PathBuf], path: &Path) -> Option<Self> {
        let below = folders.iter().filter(|folder| path.starts_with(folder));
        let root = below.max_by_key(|folder| folder.components().count())?;
        let way = path.strip_prefix(root).ok().filter(|way| !way.as_os_str().is_empty())?;
        let at_hand = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
        let handle = OFlags::PATH | OFlags::CLOEXEC;
        // A root whose path contains a link is not the configured root.
        let named = at_hand | ResolveFlags::NO_SYMLINKS;
        let root = openat2(CWD, root, handle | OFlags::DIRECTORY, Mode::empty(), named).ok()?;
        let found = openat2(&root, way, handle, Mode::empty(), at_hand | ResolveFlags::BENEATH).ok()?;
        if is_the_kernels_own(&found).ok()? {
            return None;
        }
        Self::new(found, path.to_owned()).ok()
    }
}
