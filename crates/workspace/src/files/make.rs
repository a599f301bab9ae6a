//! Making folders.

use std::path::Path;

use rustix::{
    fs::{Mode, mkdirat},
    io::Errno,
};
use skep_api::files::{FolderMade, MakeFolder};

use super::answered;
use crate::{Error, Roots, roots::Last};

/// The mode of a new folder.
const NEW_MODE: u32 = 0o755;

pub(super) fn make(roots: &Roots, request: &MakeFolder) -> Result<FolderMade, Error> {
    let created = with_parents(roots, request.path.as_path(), request.mode)?;
    let (path, path_encoding) = answered(&request.path);
    Ok(FolderMade { path, path_encoding, created })
}

/// Makes a folder, and those above it that are missing. Whether it was not there before.
pub(super) fn with_parents(roots: &Roots, path: &Path, mode: Option<u32>) -> Result<bool, Error> {
    match roots.find(path, Last::Follow) {
        Ok(found) if found.is_directory() => return Ok(false),
        Ok(_) => return Err(Error::ThroughAFile { path: path.display().to_string() }),
        Err(Error::UnknownPath { .. }) => {}
        Err(error) => return Err(error),
    }
    if let Some(above) = path.parent() {
        with_parents(roots, above, None)?;
    }
    let slot = roots.slot(path)?;
    match mkdirat(slot.folder(), slot.name(), Mode::from_raw_mode(mode.unwrap_or(NEW_MODE))) {
        Ok(()) => {}
        // Somebody else made it meanwhile, or a link of that name leads nowhere.
        Err(Errno::EXIST) => {
            return match roots.find(path, Last::Follow)? {
                found if found.is_directory() => Ok(false),
                _ => Err(Error::ThroughAFile { path: path.display().to_string() }),
            };
        }
        Err(error) => return Err(Error::of_path(path, &error.into())),
    }
    let synced = slot.folder().read().and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::of_path(path, &error))?;
    Ok(true)
}
