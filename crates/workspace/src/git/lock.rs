//! Serializes requests of this process that write to the same repository.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::OwnedMutexGuard;

use super::GitError;
use crate::Error;

/// How long a request waits for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

type RepositoryLock = tokio::sync::Mutex<()>;

static LOCKS: Mutex<Option<HashMap<PathBuf, Weak<RepositoryLock>>>> = Mutex::new(None);

/// Takes the write lock of the repository in this folder.
///
/// # Errors
/// [`GitError::Busy`] after a time limit.
pub(super) async fn write_lock(folder: &Path) -> Result<OwnedMutexGuard<()>, Error> {
    let lock = lock_for(folder);
    let waiting = tokio::time::timeout(LOCK_TIMEOUT, lock.lock_owned()).await;
    waiting.map_err(|_| GitError::Busy.into())
}

fn lock_for(folder: &Path) -> Arc<RepositoryLock> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    let locks = locks.get_or_insert_default();
    if let Some(lock) = locks.get(folder).and_then(Weak::upgrade) {
        return lock;
    }
    locks.retain(|_, turn| turn.strong_count() > 0);
    let lock = Arc::new(RepositoryLock::default());
    locks.insert(folder.to_owned(), Arc::downgrade(&lock));
    lock
}
