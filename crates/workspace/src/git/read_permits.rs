//! Permits of operations that read a repository. Each takes memory, threads and processor time, and a hostile repository can
//! hold up its gits until their time limit: a FIFO in place of a file is enough.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::shared_by_key::SharedByKey;
use crate::{Error, Place};

/// Limit of reading operations at the same time.
pub(super) const MAX_READS: usize = 16;
/// Limit of those of one account, so that another account is served while all of its own are held up.
pub(super) const MAX_READS_OF_ACCOUNT: usize = 8;

static OF_ALL: Semaphore = Semaphore::const_new(MAX_READS);
static OF_ACCOUNTS: LazyLock<SharedByKey<Vec<PathBuf>, Semaphore>> = LazyLock::new(SharedByKey::default);

/// Lets one operation read. Dropping it lets the next one.
#[derive(Debug)]
pub(super) struct ReadPermit {
    _of_account: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

impl ReadPermit {
    /// Waits for a permit. The roots of the place stand for its account.
    pub(super) async fn acquire(place: &Place) -> Result<Self, Error> {
        let roots = place.root_paths().map(Path::to_owned).collect();
        let of_account = OF_ACCOUNTS.get(roots, || Semaphore::new(MAX_READS_OF_ACCOUNT));
        // In this order, so that calls that wait for their own account take nothing from others.
        let of_account = of_account.acquire_owned().await.map_err(|_| Error::WorkerFailed)?;
        let of_all = OF_ALL.acquire().await.map_err(|_| Error::WorkerFailed)?;
        Ok(Self { _of_account: of_account, _of_all: of_all })
    }
}
