//! The roots of a workspace, and the lookup of paths below them.
//!
//! ```text
//! absolute path ── longest root ──► openat2(RESOLVE_BENEATH) ──► O_PATH handle
//!                       ▲                    │ leaves this root by an absolute link or `..`
//!                       └── walk: resolves the links one by one, to a path without links ◄┘
//! ```
//! The kernel resolves every path in the call that opens it. The walk only determines which root to ask; if something
//! changes in the meantime, the open fails and cannot lead outside the roots.

mod cached;
mod location;
mod open;
mod path_handle;
mod walk;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};

pub use location::Location;
pub(crate) use path_handle::{PathHandle, Slot};
pub(crate) use walk::MAX_LINKS;

use crate::Error;

/// How a lookup treats a symbolic link in the last component of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinalLink {
    Follow,
    /// Return the link itself.
    NoFollow,
}

/// The roots of a workspace, each held open.
#[derive(Debug)]
pub struct Roots(Vec<Root>);

#[derive(Debug)]
struct Root {
    path: PathBuf,
    directory: OwnedFd,
    /// The device of its file system; fixed while the directory is open. `None` for kernel file systems such as proc.
    device: Option<u64>,
}

impl Roots {
    /// Opens the roots. A directory that takes the name of a root later is not used.
    ///
    /// # Errors
    /// [`Error::Root`] if a root is not absolute, does not exist or is not a directory.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, Error> {
        let roots = paths.into_iter().map(|path| match Root::open(&path) {
            Ok(root) => Ok(root),
            Err(source) => Err(Error::Root { path, source }),
        });
        let mut roots = roots.collect::<Result<Vec<_>, Error>>()?;
        // Longest first: of nested roots, the innermost one is used.
        roots.sort_by_key(|root| std::cmp::Reverse(root.path.components().count()));
        Ok(Self(roots))
    }

    /// Finds a path. The returned handle is opened with `O_PATH`, so nothing is read or written yet.
    ///
    /// # Errors
    /// [`Error::UnknownPath`] if nothing exists there, [`Error::OutsideRoots`] if the path is outside the roots or
    /// leads there, and any other error of the kernel.
    pub(crate) fn find(&self, path: &Path, last: FinalLink) -> Result<PathHandle, Error> {
        open::find(self, path, last).map_err(|error| Error::of_path(path, &error))
    }

    /// The folder that contains, or would contain, the last component of the path.
    ///
    /// # Errors
    /// Those of [`Self::find`] for that folder; [`Error::OutsideRoots`] for a root itself, whose parent is not part of
    /// the workspace.
    pub(crate) fn slot(&self, path: &Path) -> Result<Slot, Error> {
        open::slot(self, path).map_err(|error| Error::of_path(path, &error))
    }

    /// Opens the current entry of a slot. A symbolic link is not followed.
    ///
    /// # Errors
    /// Those of [`Self::find`], reported for `path`.
    pub(crate) fn entry(&self, slot: &Slot, path: &Path) -> Result<PathHandle, Error> {
        open::entry(self, slot).map_err(|error| Error::of_path(path, &error))
    }

    /// The innermost root that is a prefix of the path, and the path relative to it: `.` for the root itself.
    fn innermost_root(&self, path: &Path) -> Option<(&Root, PathBuf)> {
        self.0.iter().find_map(|root| {
            let rest = path.strip_prefix(&root.path).ok()?;
            let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
            Some((root, rest.to_owned()))
        })
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|root| root.path.as_path())
    }

    pub(crate) fn handles(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|root| root.directory.as_fd()).collect()
    }

    /// Whether a root is on this device and the device is not a kernel file system.
    fn include_device(&self, device: u64) -> bool {
        self.0.iter().any(|root| root.device == Some(device))
    }

    fn is_root(&self, path: &Path) -> bool {
        self.0.iter().any(|root| root.path == path)
    }
}

/// Opens the directory of a root with `O_PATH`.
///
/// Roots are configured by resolved paths. A symbolic link on such a path was created later and redirects the root, so
/// no link is followed.
///
/// # Errors
/// The directory does not exist, or its path contains a symbolic link.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Err(Errno::LOOP) => {
            let why = "a symbolic link stands where the folder, or one above it, was when it was named";
            Err(io::Error::new(io::ErrorKind::NotADirectory, why))
        }
        outcome => Ok(outcome?),
    }
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        if !path.is_absolute() {
            return Err(io::Error::other("it is not absolute"));
        }
        let directory = open_root(path)?;
        // Fails if this process may not access the root, for example because Landlock restricts it to other
        // directories.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&directory, ".", flags, Mode::empty(), ResolveFlags::BENEATH)?;
        let device =
            if open::is_on_kernel_filesystem(&directory)? { None } else { Some(fstat(&directory)?.st_dev) };
        Ok(Self { path: path.to_owned(), directory, device })
    }

    /// Whether this is `/`, as inside a VM. Absolute links then resolve within it.
    fn is_filesystem_root(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Opens a path relative to this root with `O_PATH`.
    fn handle(&self, relative: &Path, last: FinalLink, links: Links) -> io::Result<OwnedFd> {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        if last == FinalLink::NoFollow {
            flags |= OFlags::NOFOLLOW;
        }
        let bounds = if self.is_filesystem_root() { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        let mut resolve = bounds | ResolveFlags::NO_MAGICLINKS;
        if links == Links::None {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        retry_on_race(|| openat2(&self.directory, relative, flags, Mode::empty(), resolve))
    }
}

/// Whether the path may contain symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Any,
    /// The walk has resolved all links already.
    None,
}

/// How often a lookup is repeated when it races with renames.
const TRIES: u32 = 64;

/// Repeats the lookup on `EAGAIN`, which the kernel returns when a concurrent rename makes the result uncertain
/// (openat2(2)).
fn retry_on_race(open: impl Fn() -> rustix::io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let mut tries = 0;
    loop {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            outcome => return Ok(outcome?),
        }
    }
}

fn kind(handle: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(handle)?.st_mode))
}

/// Splits a path into folder and name. `None` if it ends in `..` or is `/`.
fn split(path: &Path) -> Option<(&Path, OsString)> {
    Some((path.parent()?, path.file_name()?.to_owned()))
}
