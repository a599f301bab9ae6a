//! Creating folders.

use std::path::Path;

use rustix::{
    fs::{Mode, mkdirat},
    io::Errno,
};
use skep_api::files::{FolderMade, MakeFolder};

use super::{encoded_path, on_disk};
use crate::{Error, Place, Roots, Run, roots::FinalLink};

const NEW_MODE: u32 = 0o755;

impl Run for MakeFolder {
    async fn run(self, place: &Place) -> Result<FolderMade, Error> {
        on_disk(place, move |roots| make(roots, &self)).await
    }
}

fn make(roots: &Roots, request: &MakeFolder) -> Result<FolderMade, Error> {
    let created = with_parents(roots, request.path.as_path(), request.mode)?;
    let (path, path_encoding) = encoded_path(&request.path);
    Ok(FolderMade { path, path_encoding, created })
}

/// Creates a folder and its missing parents. Returns whether the folder is new.
pub(super) fn with_parents(roots: &Roots, path: &Path, mode: Option<u32>) -> Result<bool, Error> {
    let mut missing = Vec::new();
    for at in path.ancestors() {
        match roots.find(at, FinalLink::Follow) {
            Ok(found) if found.is_directory() => break,
            Ok(_) => return Err(Error::ThroughAFile { path: at.display().to_string() }),
            Err(Error::UnknownPath { .. }) => missing.push(at),
            Err(error) => return Err(error),
        }
    }
    let mut created = false;
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
