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

use super::{FinalLink, Links, PathHandle, Roots, Slot, retry_on_race, split, walk::walk};

/// Kernel file systems: reading their files returns kernel state, and writing changes it (statfs(2), `linux/magic.h`).
const KERNEL_FILESYSTEMS: [u64; 13] = [
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

pub(super) fn find(roots: &Roots, path: &Path, last: FinalLink) -> io::Result<PathHandle> {
    let (handle, path) = handle(roots, path, last)?;
    refuse_kernel_filesystem(roots, PathHandle::new(handle, path)?)
}

pub(super) fn is_on_kernel_filesystem(found: impl AsFd) -> io::Result<bool> {
    Ok(KERNEL_FILESYSTEMS.contains(&(fstatfs(found)?.f_type as u64)))
}

pub(super) fn slot(roots: &Roots, path: &Path) -> io::Result<Slot> {
    let (folder, name) = split(path).ok_or_else(outside_roots)?;
    let folder = find(roots, folder, FinalLink::Follow)?;
    if !folder.is_directory() {
        return Err(Errno::NOTDIR.into());
    }
    if roots.is_root(&folder.path().join(&name)) {
        return Err(outside_roots());
    }
    Ok(Slot::new(folder, name))
}

/// Opens the current entry of a slot. A symbolic link is not followed.
pub(super) fn entry(roots: &Roots, slot: &Slot) -> io::Result<PathHandle> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(slot.folder(), slot.name(), flags, Mode::empty(), resolve);
    let found = PathHandle::new(retry_on_race(open)?, slot.folder().path().join(slot.name()))?;
    refuse_kernel_filesystem(roots, found)
}

fn refuse_kernel_filesystem(roots: &Roots, found: PathHandle) -> io::Result<PathHandle> {
    // Usually the entry is on the device of its root, which saves the `fstatfs`.
    if !roots.include_device(found.device()) && is_on_kernel_filesystem(&found)? {
        return Err(outside_roots());
    }
    Ok(found)
}

/// The handle of the target of a path, and the path without links.
fn handle(roots: &Roots, path: &Path, last: FinalLink) -> io::Result<(OwnedFd, PathBuf)> {
    if let Some((root, relative)) = roots.innermost_root(path) {
        match root.handle(&relative, last, Links::Any) {
            Ok(handle) => return Ok((handle, path.to_owned())),
            Err(error) if !leads_out(&error) => return Err(error),
            Err(_) => {}
        }
    }
    let path = walk(roots, path, last)?;
    let (root, relative) = roots.innermost_root(&path).ok_or_else(outside_roots)?;
    match root.handle(&relative, FinalLink::NoFollow, Links::None) {
        Ok(handle) => Ok((handle, path)),
        // The path became a link after the walk.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Err(outside_roots()),
        Err(error) => Err(error),
    }
}

fn leads_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::XDEV.raw_os_error())
}

/// `EXDEV`, which the kernel returns for paths that leave a root, is also used for paths below no root.
pub(super) fn outside_roots() -> io::Error {
    Errno::XDEV.into()
}
