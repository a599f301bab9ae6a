//! Folders for the time of one call.

use std::{
    fmt::Write,
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::fs::{Mode, mkdirat};

use super::locate::TEMPORARY_PREFIX;
use crate::{Error, Place};

/// Together longer than the grace period of a git that is ending.
const REMOVE_ATTEMPTS: u32 = 40;
const REMOVE_INTERVAL: Duration = Duration::from_millis(100);

/// A folder that is removed on drop.
#[derive(Debug)]
pub(super) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Creates one that programs of the account cannot access, if this process has such a place. Otherwise it is in the first
    /// root, where they can.
    ///
    /// # Errors
    /// A workspace without roots, or a failure of the file system.
    pub(super) async fn create_private(place: &Place) -> Result<Self, Error> {
        match place.private_folder() {
            Some(folder) => {
                let path = folder.join(random_name()?);
                let making = tokio::task::spawn_blocking(move || {
                    let made = DirBuilder::new().mode(0o700).create(&path);
                    made.map_err(|error| Error::of_path(&path, &error)).map(|()| Self(path))
                });
                making.await.map_err(|_| Error::WorkerFailed)?
            }
            None => Self::create_in_root(place).await,
        }
    }

    /// Creates one in the first root, where there is space for objects.
    ///
    /// # Errors
    /// Those of [`Self::create_private`].
    pub(super) async fn create_in_root(place: &Place) -> Result<Self, Error> {
        let (place, name) = (place.clone(), random_name()?);
        let making = tokio::task::spawn_blocking(move || {
            let roots = place.roots()?;
            let path = roots.paths().next().map(|root| root.join(name)).ok_or(Error::WorkerFailed)?;
            let slot = roots.slot(&path)?;
            let made = mkdirat(slot.folder(), slot.name(), Mode::RWXU);
            made.map_err(|error| Error::of_path(&path, &error.into())).map(|()| Self(path))
        });
        making.await.map_err(|_| Error::WorkerFailed)?
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

/// An unguessable name with the prefix of temporary repositories, which listings of files leave out by default.
fn random_name() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    read.map_err(|error| Error::NotStarted { source: io::Error::from(error) })?;
    let mut name = TEMPORARY_PREFIX.to_owned();
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let folder = std::mem::take(&mut self.0);
        let remove = move || {
            // A git that is ending may still create files.
            for _ in 0..REMOVE_ATTEMPTS {
                match std::fs::remove_dir_all(&folder) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(REMOVE_INTERVAL),
                    _ => return,
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
