//! Creating folders.

use std::path::Path;

use rustix::{
    fs::{Mode, mkdirat},
    io::Errno,
};
use skep_api::files::{FolderMade, MakeFolder};

use super::{adding_on_disk, encoded_path};
use crate::{ENTRY_BYTES, Error, Place, Roots, Run, disk_space::DiskLimit, roots::FinalLink};

const NEW_MODE: u32 = 0o755;
/// The mode bits with which an owner may list a folder and open what is in it.
const OWNER_READS: u32 = 0o500;

impl Run for MakeFolder {
    async fn run(self, place: &Place) -> Result<FolderMade, Error> {
        let disk = place.disk_limit().clone();
        adding_on_disk(place, move |roots| make(roots, &disk, &self)).await
    }
}

fn make(roots: &Roots, disk: &DiskLimit, request: &MakeFolder) -> Result<FolderMade, Error> {
    check_mode(disk, request.mode)?;
    let created = with_parents(roots, disk, request.path.as_path(), request.mode)?;
    let (path, path_encoding) = encoded_path(&request.path);
    Ok(FolderMade { path, path_encoding, created })
}

/// Refuses a folder whose content could not be counted.
fn check_mode(disk: &DiskLimit, mode: Option<u32>) -> Result<(), Error> {
    match mode {
        Some(mode) if disk.is_some() && mode & OWNER_READS != OWNER_READS => {
            let reason = format!(
                "is {mode:04o}, but the files of this account are counted (`max_disk_mb`): let the owner read and enter \
                 the folder, as with 0700"
            );
            Err(Error::InvalidValue { field: "mode", reason })
        }
        _ => Ok(()),
    }
}

/// Creates a folder and its missing parents. Returns whether the folder is new.
pub(super) fn with_parents(
    roots: &Roots,
    disk: &DiskLimit,
    path: &Path,
    mode: Option<u32>,
) -> Result<bool, Error> {
    let mut missing = Vec::new();
    for at in path.ancestors() {
        match roots.find(at, FinalLink::Follow) {
            Ok(found) if found.is_directory() => break,
            Ok(_) => return Err(Error::ThroughAFile { path: at.display().to_string() }),
            Err(Error::UnknownPath { .. }) => missing.push(at),
            Err(error) => return Err(error),
        }
    }
    if missing.is_empty() {
        return Ok(false);
    }
    let mut created = false;
    // For all of them, so that a refusal leaves none.
    let _taken = disk
        .try_take(ENTRY_BYTES.saturating_mul(missing.len() as u64))
        .map_err(|error| Error::of_path(path, &error))?;
    for at in missing.into_iter().rev() {
        created = make_one(roots, at, if at == path { mode } else { None })?;
    }
    Ok(created)
}

/// Creates a folder whose parent exists. Returns whether it is new.
fn make_one(roots: &Roots, path: &Path, mode: Option<u32>) -> Result<bool, Error> {
    let slot = roots.slot(path)?;
    match mkdirat(slot.folder(), slot.name(), Mode::from_raw_mode(mode.unwrap_or(NEW_MODE))) {
        Ok(()) => {}
        // It was created concurrently, or it is a dangling link.
        Err(Errno::EXIST) => {
            return match roots.find(path, FinalLink::Follow)? {
                found if found.is_directory() => Ok(false),
                _ => Err(Error::ThroughAFile { path: path.display().to_string() }),
            };
        }
        Err(error) => return Err(Error::of_path(path, &error.into())),
    }
    let synced = slot.folder().open_for_reading().and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::of_path(path, &error))?;
    Ok(true)
}
