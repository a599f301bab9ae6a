//! Creating symbolic links.

use std::{ffi::OsStr, io};

use rustix::fs::{AtFlags, FileType, RenameFlags, renameat_with, symlinkat, unlinkat};
use skep_api::{
    files::{LinkMade, MakeLink},
    path::{encode_path, percent_encoded},
};

use super::{entry_locks::EntryLocks, on_disk, temporary::unused_name, write::stat_entry};
use crate::{ENTRY_BYTES, Error, Place, Roots, Run, roots::Slot};

impl Run for MakeLink {
    async fn run(self, place: &Place) -> Result<LinkMade, Error> {
        let locks = place.entry_locks().clone();
        let _taken = place.disk_limit().take(ENTRY_BYTES).await?;
        on_disk(place, move |roots| make(roots, &locks, &self)).await
    }
}

fn make(roots: &Roots, locks: &EntryLocks, request: &MakeLink) -> Result<LinkMade, Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| Error::of_path(path, &error);
    let slot = roots.slot(path)?;
    // Created under a temporary name first, then renamed: an existing entry is replaced atomically.
    let name = unused_name().map_err(refused)?;
    symlinkat(request.target.as_os_str(), slot.folder(), &name).map_err(|error| refused(error.into()))?;
    let placed = persist(locks, &slot, &name, request);
    if placed.is_err() {
        // If this fails, the name shows that the link is temporary.
        let _ = unlinkat(slot.folder(), &name, AtFlags::empty());
    }
    let replaced = placed?;
    slot.sync_folder().map_err(refused)?;
    let both = [path.as_os_str(), request.target.as_os_str()];
    let path_encoding = both.iter().find_map(|text| encode_path(text).1);
    let [path, target] =
        both.map(|text| if path_encoding.is_some() { percent_encoded(text) } else { encode_path(text).0 });
    Ok(LinkMade { path, target, path_encoding, replaced })
}

/// Renames the link to its final name. Returns whether it replaced something.
fn persist(locks: &EntryLocks, slot: &Slot, name: &OsStr, request: &MakeLink) -> Result<bool, Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| Error::of_path(path, &error);
    let _held = locks.lock(&[slot.entry()]).map_err(refused)?;
    let old = stat_entry(slot).map_err(refused)?;
    let named = || path.display().to_string();
    match old.map(|old| FileType::from_raw_mode(old.st_mode)) {
        Some(FileType::Directory) => return Err(Error::IsADirectory { path: named() }),
        Some(_) if !request.overwrite => return Err(Error::AlreadyExists { path: named() }),
        _ => {}
    }
    let flags = if request.overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    renameat_with(slot.folder(), name, slot.folder(), slot.name(), flags)
        .map_err(|error| refused(error.into()))?;
    Ok(old.is_some())
}
