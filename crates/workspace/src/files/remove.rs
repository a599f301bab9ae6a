//! Removing a file, a link, or a folder with all that is in it.

use std::{ffi::OsStr, io, os::fd::OwnedFd, os::unix::ffi::OsStrExt, path::Path};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat, unlinkat},
    io::Errno,
};
use skep_api::files::{FileRemoved, RemoveFile};

use super::{answered, file_type, write::standing};
use crate::{Error, Roots, roots::Slot};

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
    let below = if recursive { below(&folder)? } else { 0 };
    unlinkat(slot.folder(), slot.name(), AtFlags::REMOVEDIR)?;
    Ok(below + 1)
}

/// Removes all that is in a folder. Each name is opened as it stands: what becomes a link meanwhile is not followed.
fn below(folder: &OwnedFd) -> io::Result<u64> {
    let mut removed = 0;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            kind => kind,
        };
        if kind == FileType::Directory {
            let inner = open_folder(folder, name)?;
            removed += below(&inner)?;
            unlinkat(folder, name, AtFlags::REMOVEDIR)?;
        } else {
            unlinkat(folder, name, AtFlags::empty())?;
        }
        removed += 1;
    }
    Ok(removed)
}

/// Opens a folder in a folder: no link, and no other file system mounted there.
pub(super) fn open_folder(folder: impl std::os::fd::AsFd, name: &OsStr) -> io::Result<OwnedFd> {
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
