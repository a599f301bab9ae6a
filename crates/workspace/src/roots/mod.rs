//! The folders that a place consists of, and how a path is found below them and nowhere else.
//!
//! ```text
//! an absolute path ── longest root ──► openat2(RESOLVE_BENEATH) ──► a handle that reads and writes nothing
//!                          ▲                    │ leads out of this root: an absolute link, a `..`
//!                          └── walk: link by link, by name alone, to where it leads ◄┘
//! ```
//! The kernel says what a path is, each time, in the call that opens it. The walk only finds out which root to ask; what
//! changes meanwhile makes that call fail and leads nowhere else.

mod at_hand;
mod found;
mod location;
mod open;
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

pub(crate) use found::{Found, Slot, read_up_to};
pub use location::Location;
pub(crate) use walk::MOST_LINKS;

use crate::Error;

/// What becomes of a link that a path ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// What it leads to is meant.
    Follow,
    /// The link itself is meant.
    Keep,
}

/// The folders that a place consists of, each held open.
#[derive(Debug)]
pub struct Roots(Vec<Root>);

/// One of them.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    directory: OwnedFd,
    /// Its file system, which stays as long as it is open. `None` where that is the kernel's own.
    device: Option<u64>,
}

impl Roots {
    /// Opens these folders. What has their names later is no root.
    ///
    /// # Errors
    /// [`Error::Root`] for one that is not absolute, is not there, or is no folder.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, Error> {
        let roots = paths.into_iter().map(|path| match Root::open(&path) {
            Ok(root) => Ok(root),
            Err(source) => Err(Error::Root { path, source }),
        });
        let mut roots = roots.collect::<Result<Vec<_>, Error>>()?;
        // The longest first: of a root within a root it is the one that is meant.
        roots.sort_by_key(|root| std::cmp::Reverse(root.path.components().count()));
        Ok(Self(roots))
    }

    /// What is at a path. It reads and writes nothing yet.
    ///
    /// # Errors
    /// [`Error::UnknownPath`] where there is nothing, [`Error::OutsideRoots`] for what lies, or leads, elsewhere, and
    /// whatever the kernel refuses.
    pub(crate) fn find(&self, path: &Path, last: Last) -> Result<Found, Error> {
        open::find(self, path, last).map_err(|error| Error::of_path(path, &error))
    }

    /// The folder in which a path's last name stands, or would stand.
    ///
    /// # Errors
    /// Those of [`Self::find`] for that folder; [`Error::OutsideRoots`] for a root itself, which stands in no folder of
    /// this place.
    pub(crate) fn slot(&self, path: &Path) -> Result<Slot, Error> {
        open::slot(self, path).map_err(|error| Error::of_path(path, &error))
    }

    /// What has the name of a slot now; a link itself.
    ///
    /// # Errors
    /// Those of [`Self::find`], which name this path.
    pub(crate) fn entry(&self, slot: &Slot, path: &Path) -> Result<Found, Error> {
        open::entry(self, slot).map_err(|error| Error::of_path(path, &error))
    }

    /// The root that a path lies below, by its name, and the way from there; `.` for the root itself.
    fn of(&self, path: &Path) -> Option<(&Root, PathBuf)> {
        self.0.iter().find_map(|root| {
            let rest = path.strip_prefix(&root.path).ok()?;
            let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
            Some((root, rest.to_owned()))
        })
    }

    /// The folders themselves.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|root| root.path.as_path())
    }

    /// A handle of each.
    pub(crate) fn handles(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|root| root.directory.as_fd()).collect()
    }

    /// Whether a root lies on this file system, and it is not the kernel's own.
    fn lie_on(&self, device: u64) -> bool {
        self.0.iter().any(|root| root.device == Some(device))
    }

    fn is_root(&self, path: &Path) -> bool {
        self.0.iter().any(|root| root.path == path)
    }
}

/// Opens a folder that is a root, as a handle that reads and writes nothing.
///
/// Roots are named by their resolved paths. A symbolic link on such a path was put there later, by somebody who wants the
/// root to be another folder, so none is followed.
///
/// # Errors
/// There is no such folder, or a link stands on its path.
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
        // Whether anything below it can be reached: a process that is confined to other folders only learns it here.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&directory, ".", flags, Mode::empty(), ResolveFlags::BENEATH)?;
        let device =
            if open::is_the_kernels_own(&directory)? { None } else { Some(fstat(&directory)?.st_dev) };
        Ok(Self { path: path.to_owned(), directory, device })
    }

    /// Whether it is all that there is, as inside a VM: links lead within it, whatever they say.
    fn is_everything(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Asks the kernel for what lies at this way from here.
    fn handle(&self, way: &Path, last: Last, links: Links) -> io::Result<OwnedFd> {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        if last == Last::Keep {
            flags |= OFlags::NOFOLLOW;
        }
        let bounds = if self.is_everything() { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        let mut resolve = bounds | ResolveFlags::NO_MAGICLINKS;
        if links == Links::None {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        again_while_it_moves(|| openat2(&self.directory, way, flags, Mode::empty(), resolve))
    }
}

/// Whether links may stand on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Any,
    /// None: they were all followed.
    None,
}

/// How often the kernel is asked again when something on the way was renamed while it looked.
const TRIES: u32 = 64;

/// The kernel says `EAGAIN` where a rename meanwhile leaves it unsure (openat2(2)).
fn again_while_it_moves(open: impl Fn() -> rustix::io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let mut tries = 0;
    loop {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            outcome => return Ok(outcome?),
        }
    }
}

/// The kind of what a handle is of.
fn kind(handle: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(handle)?.st_mode))
}

/// Splits a path into the folder and the name in it. Not where the last is `..` or `/`, which name no entry of a folder.
fn split(path: &Path) -> Option<(&Path, OsString)> {
    Some((path.parent()?, path.file_name()?.to_owned()))
}
