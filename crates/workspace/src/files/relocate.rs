//! Moving and copying a file, a link, or a folder with its content.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::fd::AsFd,
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fchmod, fstat, mkdirat, openat2,
        readlinkat, renameat_with, symlinkat, unlinkat,
    },
    io::Errno,
};
use skep_api::{
    AbsolutePath,
    files::{CopyFile, MoveFile, Relocated},
};

use super::{
    adding_on_disk,
    entry_locks::{EntryGuard, EntryLocks},
    etag, file_type,
    remove::{MAX_DEPTH, entries, open_folder, remove_folder},
    size,
    temporary::{IfExists, Temporary},
    write::stat_entry,
};
use crate::{
    ENTRY_BYTES, Error, Place, Roots, Run,
    disk_space::{DiskLimit, is_over_disk_quota},
    roots::Slot,
};

/// How often copying a file to another file system is tried while the file is being written to.
const TRIES: u32 = 3;
/// How much is copied at a time, in bytes: the disk space for it is taken just before.
const PIECE_BYTES: u64 = 8 << 20;
/// The mode bits that a copy keeps: not setuid and setgid.
const COPIED_BITS: u32 = 0o1777;

impl Run for MoveFile {
    async fn run(self, place: &Place) -> Result<Relocated, Error> {
        let place = place.clone();
        adding_on_disk(&place.clone(), move |roots| move_file(roots, &place, &self)).await
    }
}

impl Run for CopyFile {
    async fn run(self, place: &Place) -> Result<Relocated, Error> {
        let place = place.clone();
        adding_on_disk(&place.clone(), move |roots| copy_file(roots, &place, &self)).await
    }
}

/// A move, or with `keep` a copy.
struct Relocate<'a> {
    from: &'a AbsolutePath,
    to: &'a AbsolutePath,
    overwrite: bool,
    keep: bool,
}

pub(super) fn move_file(roots: &Roots, place: &Place, request: &MoveFile) -> Result<Relocated, Error> {
    let MoveFile { from, to, overwrite } = request;
    relocate(roots, place, &Relocate { from, to, overwrite: *overwrite, keep: false })
}

fn copy_file(roots: &Roots, place: &Place, request: &CopyFile) -> Result<Relocated, Error> {
    let CopyFile { from, to, overwrite } = request;
    relocate(roots, place, &Relocate { from, to, overwrite: *overwrite, keep: true })
}

fn relocate(roots: &Roots, place: &Place, request: &Relocate<'_>) -> Result<Relocated, Error> {
    let (from, to) = (roots.slot(request.from.as_path())?, roots.slot(request.to.as_path())?);
    let relocation = Relocation { place, from: &from, to: &to, request };
    let Checked { kind, replaced, .. } =
        if request.keep { relocation.copy()? } else { relocation.rename()? };
    for slot in [&from, &to] {
        slot.sync_folder().map_err(|error| relocation.target_error(&error))?;
    }
    let both = [request.from.as_path(), request.to.as_path()];
    let texts = both.map(|path| skep_api::path::encode_path(path.as_os_str()));
    let path_encoding = texts.iter().find_map(|(_, encoding)| *encoding);
    let [from, to] = if path_encoding.is_some() {
        both.map(|path| skep_api::path::percent_encoded(path.as_os_str()))
    } else {
        texts.map(|(text, _)| text)
    };
    Ok(Relocated { from, to, path_encoding, r#type: file_type(kind), replaced })
}

/// A move or copy in progress.
struct Relocation<'a> {
    place: &'a Place,
    from: &'a Slot,
    to: &'a Slot,
    request: &'a Relocate<'a>,
}

/// The state of both paths when they were checked.
struct Checked {
    source: Stat,
    kind: FileType,
    replaced: bool,
}

impl Relocation<'_> {
    fn check(&self) -> Result<Checked, Error> {
        let of_from = |error: io::Error| self.source_error(&error);
        let source = stat_entry(self.from).map_err(of_from)?;
        let source = source.ok_or_else(|| of_from(Errno::NOENT.into()))?;
        let kind = FileType::from_raw_mode(source.st_mode);
        let replaced = self.check_target()?;
        let inode = (source.st_dev, source.st_ino);
        if kind == FileType::Directory
            && is_within(self.to, inode).map_err(|error| self.target_error(&error))?
        {
            return Err(Error::WithinItself { path: self.request.to.as_path().display().to_string() });
        }
        Ok(Checked { source, kind, replaced })
    }

    /// Returns whether the target exists. Fails if it does and must not be replaced.
    fn check_target(&self) -> Result<bool, Error> {
        let stands = stat_entry(self.to).map_err(|error| self.target_error(&error))?.is_some();
        if stands && !self.request.overwrite {
            return Err(Error::AlreadyExists { path: self.request.to.as_path().display().to_string() });
        }
        Ok(stands)
    }

    /// Locks both names in one call, so that two moves in opposite directions cannot deadlock.
    fn hold_both(&self) -> Result<EntryGuard<'_>, Error> {
        let held = self.place.entry_locks().lock(&[self.from.entry(), self.to.entry()]);
        held.map_err(|error| self.source_error(&error))
    }

    fn hold_target(&self) -> Result<EntryGuard<'_>, Error> {
        self.place.entry_locks().lock(&[self.to.entry()]).map_err(|error| self.target_error(&error))
    }

    fn rename(&self) -> Result<Checked, Error> {
        let held = self.hold_both()?;
        let seen = self.check()?;
        let flags = match self.if_exists() {
            IfExists::Replace => RenameFlags::empty(),
            IfExists::Refuse => RenameFlags::NOREPLACE,
        };
        let (from, to, disk) = (self.from, self.to, self.place.disk_limit());
        let bytes = (seen.kind != FileType::Directory).then(|| size(&seen.source));
        if bytes.is_none() {
            // Before and after, because a count may begin or end in between.
            disk.moved(None);
        }
        match renameat_with(from.folder(), from.name(), to.folder(), to.name(), flags) {
            Err(Errno::XDEV) => {}
            Err(error) => return Err(self.target_error(&error.into())),
            Ok(()) => {
                disk.moved(bytes);
                return Ok(seen);
            }
        }
        drop(held);
        self.move_across(seen)
    }

    /// Moves to another file system by copying and removing.
    fn move_across(&self, seen: Checked) -> Result<Checked, Error> {
        let of_target = |error: io::Error| self.target_error(&error);
        match seen.kind {
            FileType::RegularFile => self.move_file_across(),
            FileType::Directory => {
                copy_folder(self.place, self.from, self.to).map_err(of_target)?;
                remove_folder(self.place.entry_locks(), self.from, true).map_err(of_target)?;
                Ok(seen)
            }
            _ => {
                let _held = self.hold_both()?;
                let seen = self.check()?;
                copy_link(self.from.folder(), self.from.name(), self.to.folder(), self.to.name())
                    .and_then(|()| unlink_entry(self.from))
                    .map_err(of_target)?;
                Ok(seen)
            }
        }
    }

    fn move_file_across(&self) -> Result<Checked, Error> {
        let of_target = |error: io::Error| self.target_error(&error);
        for _ in 0..TRIES {
            let (mut new, copied) = self.prepare_copy().map_err(of_target)?;
            let _held = self.hold_both()?;
            let seen = self.check()?;
            // If the source was written to since the copy, the change would be lost.
            if etag::of(&seen.source) == etag::of(&copied) {
                let now = new.persist(self.if_exists()).map_err(of_target)?;
                self.place.disk_limit().moved(Some(size(&now)));
                unlink_entry(self.from).map_err(of_target)?;
                return Ok(seen);
            }
        }
        Err(Error::Busy { path: self.request.from.as_path().display().to_string() })
    }

    fn copy(&self) -> Result<Checked, Error> {
        let of_target = |error: io::Error| self.target_error(&error);
        let seen = self.check()?;
        let (from, to) = (self.from, self.to);
        let replaced = match seen.kind {
            FileType::RegularFile => {
                let (mut new, _) = self.prepare_copy().map_err(of_target)?;
                let _held = self.hold_target()?;
                let replaced = self.check_target()?;
                let now = new.persist(self.if_exists()).map_err(of_target)?;
                self.place.disk_limit().moved(Some(size(&now)));
                replaced
            }
            FileType::Directory => {
                copy_folder(self.place, from, to).map_err(of_target)?;
                seen.replaced
            }
            FileType::Symlink => {
                let _taken = self.place.disk_limit().try_take(ENTRY_BYTES).map_err(of_target)?;
                copy_link(from.folder(), from.name(), to.folder(), to.name()).map_err(of_target)?;
                seen.replaced
            }
            _ => return Err(of_target(Errno::INVAL.into())),
        };
        Ok(Checked { replaced, ..seen })
    }

    /// A synced temporary copy of the file, and the metadata of the copied source.
    fn prepare_copy(&self) -> io::Result<(Temporary<&Slot>, Stat)> {
        let _taken = self.place.disk_limit().try_take(ENTRY_BYTES)?;
        let mut new = Temporary::create_beside(self.to)?;
        let copied = copy_content(self.place, self.from.folder(), self.from.name(), new.file())?;
        let mode = copied.st_mode & COPIED_BITS;
        new.set_mode_and_owner(None, Some(mode), mode)?;
        new.sync()?;
        Ok((new, copied))
    }

    fn if_exists(&self) -> IfExists {
        if self.request.overwrite { IfExists::Replace } else { IfExists::Refuse }
    }

    fn source_error(&self, error: &io::Error) -> Error {
        Error::of_path(self.request.from.as_path(), error)
    }

    fn target_error(&self, error: &io::Error) -> Error {
        let path = self.request.to.as_path();
        let named = || path.display().to_string();
        match Errno::from_io_error(error) {
            Some(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR) => Error::AlreadyExists { path: named() },
            Some(Errno::MLINK) => Error::TooDeep { path: named(), limit: MAX_DEPTH },
            _ => Error::of_path(path, error),
        }
    }
}

fn unlink_entry(slot: &Slot) -> io::Result<()> {
    Ok(unlinkat(slot.folder(), slot.name(), AtFlags::empty())?)
}

/// Copies a folder to a new name. `mkdir` never replaces anything, so no lock is needed.
fn copy_folder(place: &Place, from: &Slot, to: &Slot) -> io::Result<()> {
    let _taken = place.disk_limit().try_take(ENTRY_BYTES)?;
    mkdirat(to.folder(), to.name(), Mode::RWXU)?;
    let made = open_folder(to.folder(), to.name())?;
    let source = open_folder(from.folder(), from.name())?;
    let copied = copy_entries(place, &source, &made, 0).and_then(|()| copy_folder_mode(&source, &made));
    if let Err(error) = &copied {
        // This call created the folder. If the cleanup fails, a partial copy stays.
        let removed = remove_folder(place.entry_locks(), to, true);
        if removed.is_err() && is_over_disk_quota(error) {
            // The work must not run again beside it.
            return Err(Errno::DQUOT.into());
        }
    }
    copied
}

fn copy_entries(place: &Place, from: impl AsFd, to: impl AsFd, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for (name, kind) in entries(&from)? {
        let name = name.as_os_str();
        let _taken = place.disk_limit().try_take(ENTRY_BYTES)?;
        match kind {
            FileType::RegularFile => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat2(&to, name, flags, Mode::RUSR | Mode::WUSR, ResolveFlags::BENEATH)?;
                let mut file = File::from(file);
                let copied = copy_content(place, &from, name, &mut file)?;
                fchmod(&file, Mode::from_raw_mode(copied.st_mode & COPIED_BITS))?;
                file.sync_all()?;
            }
            FileType::Directory => {
                mkdirat(&to, name, Mode::RWXU)?;
                let (source, made) = (open_folder(&from, name)?, open_folder(&to, name)?);
                copy_entries(place, &source, &made, depth + 1)?;
                copy_folder_mode(&source, &made)?;
            }
            FileType::Symlink => copy_link(&from, name, &to, name)?,
            // Sockets, FIFOs and devices are not copied.
            _ => {}
        }
    }
    File::from(to.as_fd().try_clone_to_owned()?).sync_all()
}

/// Copies content, by a reflink if the file system supports it. Returns the metadata of the source.
fn copy_content(place: &Place, folder: impl AsFd, name: &OsStr, to: &mut File) -> io::Result<Stat> {
    let (source, stat) = open_source(place.entry_locks(), folder, name)?;
    let (disk, length) = (place.disk_limit(), size(&stat));
    if rustix::fs::ioctl_ficlone(&*to, &source).is_err() {
        copy_pieces(disk, &source, length, to)?;
    } else {
        // The blocks are shared with the source, and count for both.
        let _taken = disk.try_take(u64::try_from(stat.st_blocks).unwrap_or_default() * 512)?;
        if to.metadata()?.len() > length {
            to.set_len(length)?;
        }
    }
    Ok(stat)
}

/// Copies in pieces, and takes the disk space of each just before it is written.
fn copy_pieces(disk: &DiskLimit, source: &File, length: u64, to: &mut File) -> io::Result<()> {
    let mut left = length;
    while left > 0 {
        let piece = left.min(PIECE_BYTES);
        let _taken = disk.try_take(piece)?;
        if io::copy(&mut source.take(piece), to)? < piece {
            break;
        }
        left -= piece;
    }
    Ok(())
}

/// Opens a file to be copied with its current size. The lock ensures that no write of this API is in progress.
fn open_source(locks: &EntryLocks, folder: impl AsFd, name: &OsStr) -> io::Result<(File, Stat)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let _held = locks.lock(&[(folder.as_fd(), name)])?;
    let source = File::from(openat2(&folder, name, flags, Mode::empty(), resolve)?);
    let stat = fstat(&source)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL.into());
    }
    Ok((source, stat))
}

fn copy_link(folder: impl AsFd, name: &OsStr, to: impl AsFd, new_name: &OsStr) -> io::Result<()> {
    let target = readlinkat(folder, name, Vec::new())?;
    Ok(symlinkat(target, to, new_name)?)
}

fn copy_folder_mode(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mode = fstat(from)?.st_mode & COPIED_BITS;
    Ok(fchmod(to, Mode::from_raw_mode(mode))?)
}

/// Whether a slot is inside a folder or one of its subfolders.
fn is_within(slot: &Slot, folder: (u64, u64)) -> io::Result<bool> {
    let mut at = slot.folder().open_for_reading()?;
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

/// The error for a tree that would need too many descriptors.
fn too_deep() -> io::Error {
    Errno::MLINK.into()
}
