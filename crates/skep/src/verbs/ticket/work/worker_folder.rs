//! The folder of a worker, which holds what its commands get to read.
//!
//! A worker that is killed cannot remove its folder, so each start removes those of workers that have ended. A worker holds a
//! lock on its folder. Whoever makes or removes a folder holds a lock on the folder of all of them, so that none is removed
//! between its creation and its lock.

use std::{
    env,
    fs::{self, DirBuilder, File, Permissions},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use rustix::{
    fs::{FlockOperation, flock},
    process::geteuid,
};
use tempfile::TempDir;

/// A folder that is removed on drop, and by the next worker if this one is killed.
pub(super) struct WorkerFolder {
    folder: TempDir,
    /// Keeps the lock.
    _lock: File,
}

impl WorkerFolder {
    /// Creates a folder that only this user can enter, and removes those of workers that were killed.
    ///
    /// # Errors
    /// The folder of all workers of this user cannot be used, or not be written.
    pub(super) fn create() -> anyhow::Result<Self> {
        let shared = shared_folder();
        Self::create_in(&shared).with_context(|| format!("the folder {} cannot be used", shared.display()))
    }

    fn create_in(shared: &Path) -> anyhow::Result<Self> {
        match DirBuilder::new().mode(0o700).create(shared) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let metadata = fs::symlink_metadata(shared)?;
        let is_private = metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
        if !metadata.is_dir() || !is_private {
            bail!("it is not a folder that belongs to this user alone; remove it");
        }
        let all = File::open(shared)?;
        flock(&all, FlockOperation::LockExclusive)?;
        remove_abandoned(shared)?;
        let permissions = Permissions::from_mode(0o700);
        let folder =
            tempfile::Builder::new().prefix("worker-").permissions(permissions).tempdir_in(shared)?;
        let lock = File::open(folder.path())?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The folder of all workers of this user, in the one for files of running programs (XDG Base Directory Specification).
fn shared_folder() -> PathBuf {
    let user = geteuid();
    // After `sudo` or `su` it may be that of another user.
    let is_own = |folder: &PathBuf| {
        folder.is_absolute() && fs::metadata(folder).is_ok_and(|about| about.uid() == user.as_raw())
    };
    match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own) {
        Some(folder) => folder.join("skep-tickets"),
        None if user.is_root() => PathBuf::from("/run/skep-tickets"),
        None => env::temp_dir().join(format!("skep-tickets-{}", user.as_raw())),
    }
}

/// Removes the folders of workers that have ended.
fn remove_abandoned(shared: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(shared)? {
        let folder = entry?.path();
        // One that ends now removes its folder itself.
        let Ok(lock) = File::open(&folder) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("{} cannot be removed", folder.display()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_workers_that_have_ended_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let shared = parent.path().join("workers");
        let living = WorkerFolder::create_in(&shared).unwrap();
        fs::write(living.path().join("ticket.json"), "of the living").unwrap();
        let killed = WorkerFolder::create_in(&shared).unwrap();
        let abandoned = killed.path().to_owned();
        fs::write(abandoned.join("ticket.json"), "of the killed").unwrap();
        // A killed process drops its locks, and its folder stays.
        let WorkerFolder { folder, _lock } = killed;
        assert_eq!(folder.keep(), abandoned);
        drop(_lock);
        let next = WorkerFolder::create_in(&shared).unwrap();
        assert!(!abandoned.exists(), "the ticket of a killed worker can still be read");
        assert!(living.path().join("ticket.json").exists() && next.path().is_dir());
        drop((living, next));
        assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_others_can_enter_or_that_is_a_link_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let own = parent.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let refused = |folder: &Path| WorkerFolder::create_in(folder).err().map(|error| error.to_string());
        assert!(refused(&link).unwrap().contains("remove it"));
        assert_eq!(refused(&own), None, "the control");
        fs::set_permissions(&own, Permissions::from_mode(0o711)).unwrap();
        assert!(refused(&own).unwrap().contains("remove it"));
    }
}
