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

use super::{answered, file_type, temporary::unused_name, write::standing};
use crate::{Error, Roots, roots::Slot};

/// Folders in folders for each of which a descriptor is held.
pub(super) const DEEPEST: usize = 64;

pub(super) fn remove(roots: &Roots, request: &RemoveFile) -> Result<FileRemoved, Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| of(path, &error);
    let slot = roots.slot(path)?;
    let found = standing(&slot).map_err(refused)?.ok_or_else(|| refused(Errno::NOENT.into()))?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let removed = whatever_stands(&slot, kind, request.recursive).map_err(refused)?;
    let synced = slot.folder().read().and_then(|folder| folder.sync_all());
    synced.map_err(refused)?;
    let (path, path_encoding) = answered(path);
    Ok(FileRemoved { path, path_encoding, r#type: file_type(kind), removed })
}

/// Removes what has the name. How many things that were.
pub(super) fn whatever_stands(slot: &Slot, kind: FileType, recursive: bool) -> io::Result<u64> {
    if kind != FileType::Directory {
        unlinkat(slot.folder(), slot.name(), AtFlags::empty())?;
        return Ok(1);
    }
    let folder = open_folder(slot.folder(), slot.name())?;
    let below = if recursive { below(&folder, 0)? } else { 0 };
    unlinkat(slot.folder(), slot.name(), AtFlags::REMOVEDIR)?;
    Ok(below + 1)
}

/// Removes all that is in a folder. Each name is opened as it stands: what becomes a link meanwhile is not followed.
fn below(folder: &OwnedFd, depth: usize) -> io::Result<u64> {
    let mut removed = 0;
    for (name, kind) in entries(folder)? {
        if kind != FileType::Directory {
            unlinkat(folder, &name, AtFlags::empty())?;
        } else {
            let inner = open_folder(folder, &name)?;
            removed += if depth < DEEPEST { below(&inner, depth + 1)? } else { flat(&inner)? };
            unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
        }
        removed += 1;
    }
    Ok(removed)
}

/// The same for what lies very deep, which would take a descriptor and a piece of the stack for each level: what is in
/// its folders is moved up into it, level by level, until nothing is left.
fn flat(folder: &OwnedFd) -> io::Result<u64> {
    let mut removed = 0;
    loop {
        let here = entries(folder)?;
        if here.is_empty() {
            return Ok(removed);
        }
        for (name, kind) in here {
            if kind != FileType::Directory {
                unlinkat(folder, &name, AtFlags::empty())?;
            } else {
                let inner = open_folder(folder, &name)?;
                for (below, kind) in entries(&inner)? {
                    if kind == FileType::Directory {
                        renameat_with(&inner, &below, folder, unused_name()?, RenameFlags::NOREPLACE)?;
                    } else {
                        unlinkat(&inner, &below, AtFlags::empty())?;
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
