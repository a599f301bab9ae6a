//! Writing a file, whole or at its end.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Stat, readlinkat, statat},
    io::Errno,
};
use skep_api::files::{FileWritten, WriteCondition, WriteFile};

use super::{
    answered,
    content::Form,
    etag, make,
    read::{require_file, stat_now},
    size,
    temporary::{Occupied, Temporary},
};
use crate::{
    Error, Roots,
    roots::{Last, MOST_LINKS, Slot},
};

/// The mode of a new file.
const NEW_MODE: u32 = 0o644;

pub(super) fn write(roots: &Roots, request: &WriteFile) -> Result<FileWritten, Error> {
    let content = Form::by_label(&request.encoding.0)?.read(&request.content)?;
    let path = request.path.as_path();
    if request.create_parents
        && let Some(folder) = path.parent()
    {
        make::with_parents(roots, folder, None)?;
    }
    let slot = slot_behind_links(roots, path)?;
    let old = standing(&slot).map_err(|error| Error::of_path(path, &error))?;
    check(&request.condition, old.as_ref(), path)?;
    let now = match &old {
        Some(_) if request.append => append(roots, path, &content)?,
        old => replace(&slot, old.as_ref(), request, &content).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::Precondition { path: path.display().to_string() },
            _ => Error::of_path(path, &error),
        })?,
    };
    let (path, path_encoding) = answered(path);
    Ok(FileWritten {
        path,
        path_encoding,
        size_bytes: size(&now),
        created: old.is_none(),
        etag: etag::of(&now),
    })
}

/// Where the file itself stands: behind whatever links its path ends in.
fn slot_behind_links(roots: &Roots, path: &Path) -> Result<Slot, Error> {
    let mut at = PathBuf::from(path);
    for _ in 0..MOST_LINKS {
        let slot = roots.slot(&at)?;
        match readlinkat(slot.folder(), slot.name(), Vec::new()) {
            Ok(target) => {
                let target = target.to_string_lossy().into_owned();
                at = slot.folder().path().join(target);
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

fn replace(slot: &Slot, old: Option<&Stat>, request: &WriteFile, content: &[u8]) -> io::Result<Stat> {
    let mut new = Temporary::beside(slot)?;
    new.file().write_all(content)?;
    new.dress(old, request.mode, NEW_MODE)?;
    let occupied =
        if request.condition == WriteCondition::Absent { Occupied::Refuse } else { Occupied::Replace };
    let file = new.place(occupied)?;
    Ok(rustix::fs::fstat(&file)?)
}

fn append(roots: &Roots, path: &Path, content: &[u8]) -> Result<Stat, Error> {
    let found = roots.find(path, Last::Follow)?;
    require_file(&found, path)?;
    let refused = |error: io::Error| Error::of_path(path, &error);
    let mut file = found.append().map_err(refused)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(refused)?;
    stat_now(&file, path)
}
