//! Removes what a failed clone has made.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::Error;

/// Removes an unfinished clone when it is dropped, unless [`Self::end`] was called.
pub(in crate::git) struct UnfinishedClone {
    folder: Option<PathBuf>,
    existed: bool,
}

impl UnfinishedClone {
    pub(in crate::git) fn begin(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()), existed: fs::symlink_metadata(folder).is_ok() }
    }

    /// Keeps the clone if it succeeded, and removes it otherwise.
    pub(in crate::git) async fn end<T>(mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        let (folder, existed) = (self.folder.take(), self.existed);
        if outcome.is_ok() {
            return outcome;
        }
        // Errors are ignored: the caller reports the one that led here.
        let _ =
            tokio::task::spawn_blocking(move || folder.map(|folder| remove_with_retries(&folder, existed)))
                .await;
        outcome
    }
}

impl Drop for UnfinishedClone {
    fn drop(&mut self) {
        let (Some(folder), existed) = (self.folder.take(), self.existed) else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || remove_with_retries(&folder, existed))),
            Err(_) => remove_with_retries(&folder, existed),
        }
    }
}

/// Removes the folder, or only its content if the folder existed before. Retries, because a git that is ending may
/// still create files.
fn remove_with_retries(folder: &Path, existed: bool) {
    for _ in 0..REMOVE_ATTEMPTS {
        let removed = if existed { remove_entries(folder) } else { fs::remove_dir_all(folder) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(REMOVE_INTERVAL),
            _ => return,
        }
    }
    tracing::warn!(folder = %folder.display(), "the files of an unfinished clone could not be removed");
}

/// Together longer than the grace period of a git that is ending.
const REMOVE_ATTEMPTS: u32 = 40;
const REMOVE_INTERVAL: Duration = Duration::from_millis(100);

fn remove_entries(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
