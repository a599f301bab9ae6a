//! What lies at a path, where the kernel knows it without waiting for a disk.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::{Found, open::is_the_kernels_own};

impl Found {
    /// What is at a path below these folders, as [`super::Roots::find`] would find it, if all names on the way are in memory
    /// (openat2(2), `RESOLVE_CACHED`). Whatever else it is takes that one to know: it has the errors too.
    pub(crate) fn at_hand(folders: &[PathBuf], path: &Path) -> Option<Self> {
        let below = folders.iter().filter(|folder| path.starts_with(folder));
        let root = below.max_by_key(|folder| folder.components().count())?;
        let way = path.strip_prefix(root).ok().filter(|way| !way.as_os_str().is_empty())?;
        let at_hand = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
        let handle = OFlags::PATH | OFlags::CLOEXEC;
        // A root whose own name leads elsewhere is another one than it says.
        let named = at_hand | ResolveFlags::NO_SYMLINKS;
        let root = openat2(CWD, root, handle | OFlags::DIRECTORY, Mode::empty(), named).ok()?;
        let found = openat2(&root, way, handle, Mode::empty(), at_hand | ResolveFlags::BENEATH).ok()?;
        if is_the_kernels_own(&found).ok()? {
            return None;
        }
        Self::new(found, path.to_owned()).ok()
    }
}
