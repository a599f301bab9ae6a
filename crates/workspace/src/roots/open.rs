//! Opens paths below the roots.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2},
    io::Errno,
};

use super::{Found, Last, Links, Roots, Slot, again_while_it_moves, split, walk::walk};

/// Kernel file systems: reading their files returns kernel state, and writing changes it (statfs(2), `linux/magic.h`).
const KERNELS_OWN: [u64; 13] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs
    0x1cd1,      // devpts
    0x1980_0202, // mqueue
];

pub(super) fn find(roots: &Roots, path: &Path, last: Last) -> io::Result<Found> {
    let (handle, path) = handle(roots, path, last)?;
    refuse_the_kernels_own(roots, Found::new(handle, path)?)
}

pub(super) fn is_the_kernels_own(found: impl AsFd) -> io::Result<bool> {
    Ok(KERNELS_OWN.contains(&(fstatfs(found)?.f_type as u64)))
}

pub(super) fn slot(roots: &Roots, path: &Path) -> io::Result<Slot> {
    let (folder, name) = split(path).ok_or_else(outside)?;
    let folder = find(roots, folder, Last::Follow)?;
    if !folder.is_directory() {
        return Err(Errno::NOTDIR.into());
    }
    if roots.is_root(&folder.path().join(&name)) {
        return Err(outside());
    }
    Ok(Slot::new(folder, name))
}

/// Opens the current entry of a slot. A symbolic link is not followed.
pub(super) fn entry(roots: &Roots, slot: &Slot) -> io::Result<Found> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(slot.folder(), slot.name(), flags, Mode::empty(), resolve);
    let found = Found::new(again_while_it_moves(open)?, slot.folder().path().join(slot.name()))?;
    refuse_the_kernels_own(roots, found)
}

fn refuse_the_kernels_own(roots: &Roots, found: Found) -> io::Result<Found> {
    // Usually the entry is on the device of its root, which saves the `fstatfs`.
    if !roots.lie_on(found.device()) && is_the_kernels_own(&found)? {
        return Err(outside());
    }
    Ok(found)
}

/// The handle of the target of a path, and the path without links.
fn handle(roots: &Roots, path: &Path, last: Last) -> io::Result<(OwnedFd, PathBuf)> {
    if let Some((root, way)) = roots.of(path) {
        match root.handle(&way, last, Links::Any) {
            Ok(handle) => return Ok((handle, path.to_owned())),
            Err(error) if !leads_out(&error) => return Err(error),
            Err(_) => {}
        }
    }
    let path = walk(roots, path, last)?;
    let (root, way) = roots.of(&path).ok_or_else(outside)?;
    match root.handle(&way, Last::Keep, Links::None) {
        Ok(handle) => Ok((handle, path)),
        // The path became a link after the walk.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Err(outside()),
        Err(error) => Err(error),
    }
}

fn leads_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}

/// `EXDEV`, which the kernel returns for paths that leave a root, is also used for paths below no root.
pub(super) fn outside() -> io::Error {
    Errno::XDEV.into()
}
