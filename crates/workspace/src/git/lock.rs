//! Serializes requests of this process that write to the same repository.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::OwnedMutexGuard;

use super::Refused;
use crate::Error;

/// How long a request waits for the lock.
const PATIENCE: Duration = Duration::from_secs(30);

type Turn = tokio::sync::Mutex<()>;

static TURNS: Mutex<Option<HashMap<PathBuf, Weak<Turn>>>> = Mutex::new(None);

/// Takes the write lock of the repository in this folder.
///
/// # Errors
/// [`Refused::Busy`] after a time limit.
pub(super) async fn turn(folder: &Path) -> Result<OwnedMutexGuard<()>, Error> {
    let turn = of(folder);
    let waiting = tokio::time::timeout(PATIENCE, turn.lock_owned()).await;
    waiting.map_err(|_| Refused::Busy.into())
}

fn of(folder: &Path) -> Arc<Turn> {
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let turns = turns.get_or_insert_default();
    if let Some(turn) = turns.get(folder).and_then(Weak::upgrade) {
        return turn;
    }
    turns.retain(|_, turn| turn.strong_count() > 0);
    let turn = Arc::new(Turn::default());
    turns.insert(folder.to_owned(), Arc::downgrade(&turn));
    turn
}
