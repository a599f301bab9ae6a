//! Removal of a file, a link, or a folder with its content.

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

use super::{
    encoded_path, entry_locks::EntryLocks, file_type, on_disk, temporary::unused_name, write::stat_entry,
};
use crate::{Error, Place, Roots, Run, roots::Slot};

/// The deepest level to which folders are removed recursively; each level holds a descriptor open.
pub(super) const MAX_DEPTH: usize = 64;

impl Run for RemoveFile {
    async fn run(self, place: &Place) -> Result<FileRemoved, Error> {
        let locks = place.entry_locks().clone();
        on_disk(place, move |roots| remove(roots, &locks, &self)).await
    }
}

fn remove(roots: &Roots, locks: &EntryLocks, request: &RemoveFile) -> Result<FileRemoved, Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| remove_error(path, &error);
    let slot = roots.slot(path)?;
    let (kind, removed) = remove_entry(locks, &slot, request.recursive).map_err(refused)?;
    slot.sync_folder().map_err(refused)?;
    let (path, path_encoding) = encoded_path(path);
    Ok(FileRemoved { path, path_encoding, r#type: file_type(kind), removed })
}

/// Removes the entry. Returns its type and the number of removed entries, including the content of a folder.
fn remove_entry(locks: &EntryLocks, slot: &Slot, recursive: bool) -> io::Result<(FileType, u64)> {
    let held = locks.lock(&[slot.entry()])?;
    let found = stat_entry(slot)?.ok_or(Errno::NOENT)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind != FileType::Directory {
        unlinkat(slot.folder(), slot.name(), AtFlags::empty())?;
        return Ok((kind, 1));
    }
    drop(held);
    Ok((kind, remove_folder(locks, slot, recursive)?))
}

/// Removes a folder. Returns the number of removed entries.
pub(super) fn remove_folder(locks: &EntryLocks, slot: &Slot, recursive: bool) -> io::Result<u64> {
    let folder = open_folder(slot.folder(), slot.name())?;
    let below = if recursive { remove_content(locks, &folder, 0)? } else { 0 };
    unlinkat(slot.folder(), slot.name(), AtFlags::REMOVEDIR)?;
    Ok(below + 1)
}

/// Removes an entry that is not a folder.
fn unlink(locks: &EntryLocks, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let _held = locks.lock(&[(folder.as_fd(), name)])?;
    Ok(unlinkat(folder, name, AtFlags::empty())?)
}

/// Removes the content of a folder. Entries are opened without following links, also if one is replaced by a link
/// meanwhile.
fn remove_content(locks: &EntryLocks, folder: &OwnedFd, depth: usize) -> io::Result<u64> {
    let mut removed = 0;
    for (name, kind) in entries(folder)? {
        if kind != FileType::Directory {
            unlink(locks, folder, &name)?;
        } else {
            let inner = open_folder(folder, &name)?;
            removed += if depth < MAX_DEPTH {
                remove_content(locks, &inner, depth + 1)?
            } else {
                remove_by_flattening(locks, &inner)?
            };
            unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
        }
        removed += 1;
    }
    Ok(removed)
}

/// Removes very deep content without a descriptor and a stack frame per level: moves the content of subfolders up into
/// `folder`, level by level, until nothing is left.
fn remove_by_flattening(locks: &EntryLocks, folder: &OwnedFd) -> io::Result<u64> {
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

/// The names in a folder and their types.
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

/// Opens a subfolder. Fails for a symbolic link and for a mount point.
pub(super) fn open_folder(folder: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok(openat2(folder, name, flags, Mode::empty(), resolve)?)
}

fn remove_error(path: &Path, error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(Errno::NOTEMPTY) => Error::NotEmpty { path: path.display().to_string() },
        // Another file system is mounted here or below.
        Some(Errno::XDEV | Errno::BUSY) => Error::MountPoint { path: path.display().to_string() },
        _ => Error::of_path(path, error),
    }
}
