//! Moving and copying a file, a link, or a folder with all that is in it.

use std::{ffi::OsStr, fs::File, io, os::fd::AsFd, path::Path};

use rustix::{
    fs::{
        FileType, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, fstat, mkdirat, openat2, readlinkat,
        renameat_with, symlinkat,
    },
    io::Errno,
};
use skep_api::files::{Relocate, Relocated};

use super::{
    file_type,
    remove::{DEEPEST, entries, open_folder, whatever_stands},
    temporary::{Occupied, Temporary},
    write::standing,
};
use crate::{Error, Roots, roots::Slot};

/// The bits of a mode that a copy has too: not those that lend a user's rights.
const COPIED_BITS: u32 = 0o1777;

pub(super) fn relocate(roots: &Roots, request: &Relocate) -> Result<Relocated, Error> {
    let (from_path, to_path) = (request.from.as_path(), request.to.as_path());
    let (from, to) = (roots.slot(from_path)?, roots.slot(to_path)?);
    let of_from = |error: io::Error| Error::of_path(from_path, &error);
    let of_to = |error: io::Error| of_target(to_path, &error);
    let source = standing(&from).map_err(of_from)?.ok_or_else(|| of_from(Errno::NOENT.into()))?;
    let kind = FileType::from_raw_mode(source.st_mode);
    let replaced = standing(&to).map_err(of_to)?;
    if replaced.is_some() && !request.overwrite {
        return Err(Error::AlreadyExists { path: to_path.display().to_string() });
    }
    if kind == FileType::Directory && lies_within(&to, (source.st_dev, source.st_ino)).map_err(of_to)? {
        return Err(Error::WithinItself { path: to_path.display().to_string() });
    }
    let occupied = if request.overwrite { Occupied::Replace } else { Occupied::Refuse };
    if request.keep {
        copy(&from, &to, kind, occupied).map_err(of_to)?;
    } else {
        move_to(&from, &to, kind, occupied).map_err(of_to)?;
    }
    for folder in [from.folder(), to.folder()] {
        folder.read().and_then(|folder| folder.sync_all()).map_err(of_to)?;
    }
    let both = [from_path, to_path].map(|path| skep_api::path::told(path.as_os_str()));
    let path_encoding = both.iter().find_map(|(_, encoding)| *encoding);
    let [from, to] = if path_encoding.is_some() {
        [from_path, to_path].map(|path| skep_api::path::encoded(path.as_os_str()))
    } else {
        both.map(|(text, _)| text)
    };
    Ok(Relocated { from, to, path_encoding, r#type: file_type(kind), replaced: replaced.is_some() })
}

fn move_to(from: &Slot, to: &Slot, kind: FileType, occupied: Occupied) -> io::Result<()> {
    let flags = match occupied {
        Occupied::Replace => RenameFlags::empty(),
        Occupied::Refuse => RenameFlags::NOREPLACE,
    };
    match renameat_with(from.folder(), from.name(), to.folder(), to.name(), flags) {
        Err(Errno::XDEV) => {
            copy(from, to, kind, occupied)?;
            whatever_stands(from, kind, true).map(drop)
        }
        outcome => Ok(outcome?),
    }
}

fn copy(from: &Slot, to: &Slot, kind: FileType, occupied: Occupied) -> io::Result<()> {
    match kind {
        FileType::RegularFile => {
            let mut new = Temporary::beside(to)?;
            let mode = copy_content(from.folder(), from.name(), new.file())?;
            new.dress(None, Some(mode), mode)?;
            new.place(occupied).map(drop)
        }
        FileType::Directory => {
            mkdirat(to.folder(), to.name(), Mode::RWXU)?;
            let made = open_folder(to.folder(), to.name())?;
            let source = open_folder(from.folder(), from.name())?;
            let copied = copy_below(&source, &made, 0).and_then(|()| dress_folder(&source, &made));
            if copied.is_err() {
                // The folder is of this call's making; what cannot be removed stays, and says so by its name.
                let _ = whatever_stands(to, kind, true);
            }
            copied
        }
        FileType::Symlink => copy_link(from.folder(), from.name(), to.folder(), to.name()),
        _ => Err(Errno::INVAL.into()),
    }
}

fn copy_below(from: impl AsFd, to: impl AsFd, depth: usize) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(too_deep());
    }
    for (name, kind) in entries(&from)? {
        let name = name.as_os_str();
        match kind {
            FileType::RegularFile => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat2(&to, name, flags, Mode::RUSR | Mode::WUSR, ResolveFlags::BENEATH)?;
                let mut file = File::from(file);
                let mode = copy_content(&from, name, &mut file)?;
                fchmod(&file, Mode::from_raw_mode(mode))?;
                file.sync_all()?;
            }
            FileType::Directory => {
                mkdirat(&to, name, Mode::RWXU)?;
                let (source, made) = (open_folder(&from, name)?, open_folder(&to, name)?);
                copy_below(&source, &made, depth + 1)?;
                dress_folder(&source, &made)?;
            }
            FileType::Symlink => copy_link(&from, name, &to, name)?,
            // What has no content has no copy.
            _ => {}
        }
    }
    File::from(to.as_fd().try_clone_to_owned()?).sync_all()
}

/// Copies content; where the file system can, by sharing it. The mode of the source.
fn copy_content(folder: impl AsFd, name: &OsStr, to: &mut File) -> io::Result<u32> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut source = File::from(openat2(folder, name, flags, Mode::empty(), resolve)?);
    let stat = fstat(&source)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL.into());
    }
    if rustix::fs::ioctl_ficlone(&*to, &source).is_err() {
        io::copy(&mut source, to)?;
    }
    Ok(stat.st_mode & COPIED_BITS)
}

fn copy_link(folder: impl AsFd, name: &OsStr, to: impl AsFd, new_name: &OsStr) -> io::Result<()> {
    let target = readlinkat(folder, name, Vec::new())?;
    Ok(symlinkat(target, to, new_name)?)
}

fn dress_folder(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mode = fstat(from)?.st_mode & COPIED_BITS;
    Ok(fchmod(to, Mode::from_raw_mode(mode))?)
}

/// Whether a slot lies in this folder, or in one below it.
fn lies_within(slot: &Slot, folder: (u64, u64)) -> io::Result<bool> {
    let mut at = slot.folder().read()?;
    loop {
        let stat = fstat(&at)?;
        if (stat.st_dev, stat.st_ino) == folder {
            return Ok(true);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = File::from(openat2(&at, "..", flags, Mode::empty(), ResolveFlags::empty())?);
        let above_stat = fstat(&above)?;
        if (above_stat.st_dev, above_stat.st_ino) == (stat.st_dev, stat.st_ino) {
            return Ok(false);
        }
        at = above;
    }
}

/// Of a tree that would take more descriptors than there are.
fn too_deep() -> io::Error {
    Errno::MLINK.into()
}

fn of_target(path: &Path, error: &io::Error) -> Error {
    let named = || path.display().to_string();
    match Errno::from_io_error(error) {
        Some(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR) => Error::AlreadyExists { path: named() },
        Some(Errno::MLINK) => Error::TooDeep { path: named(), limit: DEEPEST },
        _ => Error::of_path(path, error),
    }
}
