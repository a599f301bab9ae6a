//! Writing a whole file, or appending to one.

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
    adding_on_disk,
    content::TextEncoding,
    encoded_path, etag, make,
    read::{require_file, stat_now},
    size,
    temporary::{IfExists, Temporary},
};
use crate::{
    Error, Place, Roots, Run,
    disk_space::{DiskLimit, file_bytes},
    roots::{MAX_LINKS, Slot},
};

pub(super) const NEW_MODE: u32 = 0o644;

impl Run for WriteFile {
    async fn run(self, place: &Place) -> Result<FileWritten, Error> {
        let (place, context) = (place.clone(), place.shared_context());
        adding_on_disk(&place.clone(), move |roots| write(roots, &place, &self, &context.condition)).await
    }
}

pub(super) fn write(
    roots: &Roots,
    place: &Place,
    request: &WriteFile,
    condition: &WriteCondition,
) -> Result<FileWritten, Error> {
    let content = TextEncoding::by_label(&request.encoding.0)?.decode(&request.content)?;
    let path = request.path.as_path();
    let refused = |error: io::Error| Error::of_path(path, &error);
    let slot = target_slot(roots, place.disk_limit(), path, request.create_parents)?;
    // This check avoids needless work; the decisive one is made below, under the lock.
    let seen = check_target(&slot, condition, path)?;
    let length = content.len() as u64;
    let added = match &seen {
        Some(seen) if request.append => {
            file_bytes(size(seen).saturating_add(length)) - file_bytes(size(seen))
        }
        _ => file_bytes(length),
    };
    let _taken = place.disk_limit().try_take(added).map_err(refused)?;
    let prepare = || prepare(&slot, seen.as_ref(), request, &content).map_err(refused);
    let prepared = if request.append && seen.is_some() { None } else { Some(prepare()?) };
    let held = place.entry_locks().lock(&[slot.entry()]).map_err(refused)?;
    let old = check_target(&slot, condition, path)?;
    if old.is_some() && request.append {
        let (file, now) = append(roots, &slot, path, &content)?;
        drop(held);
        file.sync_all().map_err(refused)?;
        return Ok(written(path, &now, false));
    }
    // Not prepared yet if the file existed at the first check and was removed since.
    let mut new = prepared.map_or_else(prepare, Ok)?;
    let now = persist(&mut new, old.as_ref(), request.mode, condition)
        .map_err(|error| persist_error(path, &error))?;
    drop(held);
    slot.sync_folder().map_err(refused)?;
    Ok(written(path, &now, old.is_none()))
}

/// The slot of the file to write, after resolving links at the end of the path.
pub(super) fn target_slot(
    roots: &Roots,
    disk: &DiskLimit,
    path: &Path,
    create_parents: bool,
) -> Result<Slot, Error> {
    if create_parents && let Some(folder) = path.parent() {
        make::with_parents(roots, disk, folder, None)?;
    }
    resolve_links(roots, path)
}

/// The metadata of the file that will be replaced, if one exists. Fails if the condition does not hold or the target
/// is not a regular file.
pub(super) fn check_target(
    slot: &Slot,
    condition: &WriteCondition,
    path: &Path,
) -> Result<Option<Stat>, Error> {
    let old = stat_entry(slot).map_err(|error| Error::of_path(path, &error))?;
    check_condition(condition, old.as_ref(), path)?;
    Ok(old)
}

/// The error of a failed [`persist`].
pub(super) fn persist_error(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Precondition { path: path.display().to_string() },
        _ => Error::of_path(path, error),
    }
}

pub(super) fn written(path: &Path, now: &Stat, created: bool) -> FileWritten {
    let (path, path_encoding) = encoded_path(path);
    FileWritten { path, path_encoding, size_bytes: size(now), created, etag: etag::of(now) }
}

/// Whether an existing file may be replaced.
fn if_exists(condition: &WriteCondition) -> IfExists {
    if *condition == WriteCondition::Absent { IfExists::Refuse } else { IfExists::Replace }
}

/// Resolves links at the end of the path.
fn resolve_links(roots: &Roots, path: &Path) -> Result<Slot, Error> {
    let mut at = PathBuf::from(path);
    for _ in 0..MAX_LINKS {
        let slot = roots.slot(&at)?;
        match readlinkat(slot.folder(), slot.name(), Vec::new()) {
            Ok(target) => {
                at = slot.folder().path().join(OsStr::from_bytes(target.to_bytes()));
            }
            // The entry is not a symbolic link, or it does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(slot),
            Err(error) => return Err(Error::of_path(path, &error.into())),
        }
    }
    Err(Error::TooManyLinks { path: path.display().to_string() })
}

/// The metadata of the current entry, if there is one.
pub(super) fn stat_entry(slot: &Slot) -> io::Result<Option<Stat>> {
    match statat(slot.folder(), slot.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn check_condition(condition: &WriteCondition, old: Option<&Stat>, path: &Path) -> Result<(), Error> {
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

/// Writes and syncs a temporary file with the new content.
fn prepare<'a>(
    slot: &'a Slot,
    seen: Option<&Stat>,
    request: &WriteFile,
    content: &[u8],
) -> io::Result<Temporary<&'a Slot>> {
    let mut new = Temporary::create_beside(slot)?;
    new.file().write_all(content)?;
    new.set_mode_and_owner(seen, request.mode, NEW_MODE)?;
    new.sync()?;
    Ok(new)
}

/// Renames a prepared file to its final name, whose lock must be held.
pub(super) fn persist(
    new: &mut Temporary<impl Borrow<Slot>>,
    old: Option<&Stat>,
    mode: Option<u32>,
    condition: &WriteCondition,
) -> io::Result<Stat> {
    // The existing file may have changed since the preparation, and with it the mode or owner to keep.
    if new.set_mode_and_owner(old, mode, NEW_MODE)? {
        new.sync()?;
    }
    new.persist(if_exists(condition))
}

/// Reserves disk space, so that an append is never written partially. Where the file system does not support that, the
/// write itself reports the error.
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

/// Appends to an existing file, whose lock must be held. Does not sync.
fn append(roots: &Roots, slot: &Slot, path: &Path, content: &[u8]) -> Result<(File, Stat), Error> {
    let found = roots.entry(slot, path)?;
    require_file(&found, path)?;
    let refused = |error: io::Error| Error::of_path(path, &error);
    let mut file = found.open_for_appending().map_err(refused)?;
    reserve(&file, content.len()).map_err(refused)?;
    file.write_all(content).map_err(refused)?;
    // While the lock is held: the ETag must not include a later append.
    let now = stat_now(&file, path)?;
    Ok((file, now))
}
