//! Removing a file, a link, or a folder with all that is in it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, openat2, renameat_with, statat,
        unlinkat,
    },
    io::Errno,
};
use skep_api::files::{FileRemoved, RemoveFile};

use super::{answered, entry_locks::EntryLocks, file_type, temporary::unused_name, write::standing};
use crate::{Error, Roots, roots::Slot};

/// Folders in folders for each of which a descriptor is held.
pub(super) const DEEPEST: usize = 64;

pub(super) fn remove(roots: &Roots, locks: &EntryLocks, request: &RemoveFile) -> Result<FileRemoved, Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| of(path, &error);
    let slot = roots.slot(path)?;
    let (kind, removed) = remove_entry(locks, &slot, request.recursive).map_err(refused)?;
    slot.sync_folder().map_err(refused)?;
    let (path, path_encoding) = answered(path);
    Ok(FileRemoved { path, path_encoding, r#type: file_type(kind), removed })
}

/// Removes what has the name. What that was, and how many things with all that was in it.
fn remove_entry(locks: &EntryLocks, slot: &Slot, recursive: bool) -> io::Result<(FileType, u64)> {
    let held = locks.hold(&[slot.entry()])?;
    let found = standing(slot)?.ok_or(Errno::NOENT)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind != FileType::Directory {
        unlinkat(slot.folder(), slot.name(), AtFlags::empty())?;
        return Ok((kind, 1));
    }
    drop(held);
    Ok((kind, remove_folder(locks, slot, recursive)?))
}

/// Removes the folder that has the name. How many things that were.
pub(super) fn remove_folder(locks: &EntryLocks, slot: &Slot, recursive: bool) -> io::Result<u64> {
    let folder = open_folder(slot.folder(), slot.name())?;
    let below = if recursive { below(locks, &folder, 0)? } else { 0 };
    unlinkat(slot.folder(), slot.name(), AtFlags::REMOVEDIR)?;
    Ok(below + 1)
}

/// Removes what is no folder.
fn unlink(locks: &EntryLocks, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let _held = locks.hold(&[(folder.as_fd(), name)])?;
    Ok(unlinkat(folder, name, AtFlags::empty())?)
}

/// Removes all that is in a folder. Each name is opened as it stands: what becomes a link meanwhile is not followed.
fn below(locks: &EntryLocks, folder: &OwnedFd, depth: usize) -> io::Result<u64> {
    let mut removed = 0;
    for (name, kind) in entries(folder)? {
        if kind != FileType::Directory {
            unlink(locks, folder, &name)?;
        } else {
            let inner = open_folder(folder, &name)?;
            removed += if depth < DEEPEST { below(locks, &inner, depth + 1)? } else { flat(locks, &inner)? };
            unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
        }
        removed += 1;
    }
    Ok(removed)
}

/// The same for what lies very deep, which would take a descriptor and a piece of the stack for each level: what is in
/// its folders is moved up into it, level by level, until nothing is left.
fn flat(locks: &EntryLocks, folder: &OwnedFd) -> io::Result<u64> {
    let mut removed = 0;
    loop {
        let here = entries(folder)?;
        if here.is_empty() {
            return Ok(removed);
        }
        for (name, kind) in here {
            if kind != FileType::Directory {
                unlink(locks, folder, &name)?;
            } else {
                let inner = open_folder(folder, &name)?;
                for (below, kind) in entries(&inner)? {
                    if kind == FileType::Directory {
                        renameat_with(&inner, &below, folder, unused_name()?, RenameFlags::NOREPLACE)?;
                    } else {
                        unlink(locks, &inner, &below)?;
                        removed += 1;
                    }
                }
                unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
            }
            removed += 1;
        }
    }
}

/// The names in a folder, and what they are of.
pub(crate) fn entries(folder: impl AsFd) -> io::Result<Vec<(OsString, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    Ok(entries)
}

/// Opens a folder in a folder: no link, and no other file system mounted there.
pub(super) fn open_folder(folder: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok(openat2(folder, name, flags, Mode::empty(), resolve)?)
}

fn of(path: &Path, error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(Errno::NOTEMPTY) => Error::NotEmpty { path: path.display().to_string() },
        // Another file system is mounted there, or below.
        Some(Errno::XDEV | Errno::BUSY) => Error::MountPoint { path: path.display().to_string() },
        _ => Error::of_path(path, error),
    }
}
