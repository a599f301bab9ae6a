//! Serializes requests of this process that write to the same repository.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{GitError, shared_by_key::SharedByKey};
use crate::Error;

/// How long a request waits for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

static LOCKS: LazyLock<SharedByKey<PathBuf, Mutex<()>>> = LazyLock::new(SharedByKey::default);

/// Takes the write lock of the repository in this folder.
///
/// # Errors
/// [`GitError::Busy`] after a time limit.
pub(super) async fn write_lock(folder: &Path) -> Result<OwnedMutexGuard<()>, Error> {
    let lock = LOCKS.get(folder.to_owned(), Mutex::default);
    let waiting = tokio::time::timeout(LOCK_TIMEOUT, lock.lock_owned()).await;
    waiting.map_err(|_| GitError::Busy.into())
}
