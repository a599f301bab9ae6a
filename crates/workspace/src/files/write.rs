//! Writing a file, whole or at its end.

use std::{
    borrow::Borrow,
    ffi::OsStr,
    fs::File,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FallocateFlags, FileType, Stat, fallocate, readlinkat, statat},
    io::Errno,
};
use skep_api::files::{FileWritten, WriteCondition, WriteFile};

use super::{
    answered,
    content::Form,
    entry_locks::EntryLocks,
    etag, make,
    read::{require_file, stat_now},
    size,
    temporary::{Occupied, Temporary},
};
use crate::{
    Error, Roots,
    roots::{MOST_LINKS, Slot},
};

/// The mode of a new file.
pub(super) const NEW_MODE: u32 = 0o644;

pub(super) fn write(roots: &Roots, locks: &EntryLocks, request: &WriteFile) -> Result<FileWritten, Error> {
    let content = Form::by_label(&request.encoding.0)?.read(&request.content)?;
    let path = request.path.as_path();
    let refused = |error: io::Error| Error::of_path(path, &error);
    let slot = slot_for(roots, path, request.create_parents)?;
    // The look that counts comes under the lock; this one refuses before anything is written.
    let seen = replaceable(&slot, &request.condition, path)?;
    let prepare = || prepare(&slot, seen.as_ref(), request, &content).map_err(refused);
    let prepared = if request.append && seen.is_some() { None } else { Some(prepare()?) };
    let held = locks.hold(&[slot.entry()]).map_err(refused)?;
    let old = replaceable(&slot, &request.condition, path)?;
    if old.is_some() && request.append {
        let (file, now) = append(roots, &slot, path, &content)?;
        drop(held);
        file.sync_all().map_err(refused)?;
        return Ok(written(path, &now, false));
    }
    // None is prepared where something should have been added to a file that was removed meanwhile.
    let mut new = prepared.map_or_else(prepare, Ok)?;
    let now = place(&mut new, old.as_ref(), request.mode, &request.condition)
        .map_err(|error| not_placed(path, &error))?;
    drop(held);
    slot.sync_folder().map_err(refused)?;
    Ok(written(path, &now, old.is_none()))
}

/// Where a file shall stand: behind whatever links its path ends in.
pub(super) fn slot_for(roots: &Roots, path: &Path, create_parents: bool) -> Result<Slot, Error> {
    if create_parents && let Some(folder) = path.parent() {
        make::with_parents(roots, folder, None)?;
    }
    slot_behind_links(roots, path)
}

/// The file that is replaced, where there is one. Refused where the condition does not hold, or no file stands there.
pub(super) fn replaceable(
    slot: &Slot,
    condition: &WriteCondition,
    path: &Path,
) -> Result<Option<Stat>, Error> {
    let old = standing(slot).map_err(|error| Error::of_path(path, &error))?;
    check(condition, old.as_ref(), path)?;
    Ok(old)
}

/// Why a new file did not get its name.
pub(super) fn not_placed(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Precondition { path: path.display().to_string() },
        _ => Error::of_path(path, error),
    }
}

pub(super) fn written(path: &Path, now: &Stat, created: bool) -> FileWritten {
    let (path, path_encoding) = answered(path);
    FileWritten { path, path_encoding, size_bytes: size(now), created, etag: etag::of(now) }
}

/// What becomes of what has the name when a new file gets it.
fn occupied(condition: &WriteCondition) -> Occupied {
    if *condition == WriteCondition::Absent { Occupied::Refuse } else { Occupied::Replace }
}

/// Where the file itself stands: behind whatever links its path ends in.
fn slot_behind_links(roots: &Roots, path: &Path) -> Result<Slot, Error> {
    let mut at = PathBuf::from(path);
    for _ in 0..MOST_LINKS {
        let slot = roots.slot(&at)?;
        match readlinkat(slot.folder(), slot.name(), Vec::new()) {
            Ok(target) => {
                at = slot.folder().path().join(OsStr::from_bytes(target.to_bytes()));
            }
            // No link, or nothing at all.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(slot),
            Err(error) => return Err(Error::of_path(path, &error.into())),
        }
    }
    Err(Error::TooManyLinks { path: path.display().to_string() })
}

/// What has the name, where something has.
pub(super) fn standing(slot: &Slot) -> io::Result<Option<Stat>> {
    match statat(slot.folder(), slot.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn check(condition: &WriteCondition, old: Option<&Stat>, path: &Path) -> Result<(), Error> {
    let named = || path.display().to_string();
    match old.map(|old| FileType::from_raw_mode(old.st_mode)) {
        None | Some(FileType::RegularFile) => {}
        Some(FileType::Directory) => return Err(Error::IsADirectory { path: named() }),
        Some(_) => return Err(Error::NotAFile { path: named() }),
    }
    let holds = match condition {
        WriteCondition::None => true,
        WriteCondition::Exists => old.is_some(),
        WriteCondition::Absent => old.is_none(),
        WriteCondition::Matches(tags) => old.is_some_and(|old| tags.contains(&etag::of(old))),
    };
    if holds { Ok(()) } else { Err(Error::Precondition { path: named() }) }
}

/// A new file with its content, on the disk, which lacks its name alone.
fn prepare<'a>(
    slot: &'a Slot,
    seen: Option<&Stat>,
    request: &WriteFile,
    content: &[u8],
) -> io::Result<Temporary<&'a Slot>> {
    let mut new = Temporary::beside(slot)?;
    new.file().write_all(content)?;
    new.dress(seen, request.mode, NEW_MODE)?;
    new.sync()?;
    Ok(new)
}

/// Gives a prepared file its name, in place of this one. The name must be held.
pub(super) fn place(
    new: &mut Temporary<impl Borrow<Slot>>,
    old: Option<&Stat>,
    mode: Option<u32>,
    condition: &WriteCondition,
) -> io::Result<Stat> {
    // What stands there now may have another mode or owner than what stood there before.
    if new.dress(old, mode, NEW_MODE)? {
        new.sync()?;
    }
    new.place(occupied(condition))
}

/// Room behind a file's end: a part of what is added would be worse than nothing of it. Where a file system cannot promise room,
/// the write itself finds out.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let end = file.metadata()?.len();
    match fallocate(file, FallocateFlags::KEEP_SIZE, end, bytes as u64) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => Ok(done?),
    }
}

/// Adds to what has the name, which must be held. The file is not synced yet.
fn append(roots: &Roots, slot: &Slot, path: &Path, content: &[u8]) -> Result<(File, Stat), Error> {
    let found = roots.entry(slot, path)?;
    require_file(&found, path)?;
    let refused = |error: io::Error| Error::of_path(path, &error);
    let mut file = found.append().map_err(refused)?;
    reserve(&file, content.len()).map_err(refused)?;
    file.write_all(content).map_err(refused)?;
    // Before the name is free: the tag must be of this content, not of what is added next.
    let now = stat_now(&file, path)?;
    Ok((file, now))
}
