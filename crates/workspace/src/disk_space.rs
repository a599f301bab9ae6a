//! Disk space for what operations add to a workspace whose account has a limit.

use std::{fmt, io, path::Path, sync::Arc};

use futures_util::future::BoxFuture;
use skep_api::Failure;

use crate::Error;

/// What an entry of a folder counts at least, in bytes: a block of the usual file systems. So the number of entries is
/// limited too.
pub const ENTRY_BYTES: u64 = 4096;

/// The disk space of an account that has a limit.
#[warn(missing_docs)]
pub trait DiskSpace: fmt::Debug + Send + Sync {
    /// Takes so many bytes of what is left, without waiting. They count until the files of the account are counted again after
    /// [`Self::written`], also if the operation does not write them.
    ///
    /// # Errors
    /// `quota_exceeded`, by what is known.
    fn try_take(&self, bytes: u64) -> Result<(), Failure>;

    /// Notes that bytes which were taken have been written, or will not be.
    fn written(&self, bytes: u64);

    /// Notes that something has another path now, so that a count in progress may have missed it: a folder, or something else of this
    /// size.
    fn moved(&self, bytes: Option<u64>);

    /// Notes that the operation begins again, after what it has written was removed.
    fn begin_again(&self);

    /// Finds out what is left, after a refusal. Returns whether the files were counted, so that a further refusal is final.
    ///
    /// # Errors
    /// It cannot be found out.
    fn refresh(&self) -> BoxFuture<'_, Result<bool, Failure>>;
}

/// What a file of this length occupies about, in bytes.
pub(crate) fn file_bytes(length: u64) -> u64 {
    length.div_ceil(ENTRY_BYTES).max(1).saturating_mul(ENTRY_BYTES)
}

/// The limit of a place on disk space, if there is one. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskLimit(Option<Arc<dyn DiskSpace>>);

/// Disk space that was taken. Drop it once it is written to.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct TakenSpace {
    space: Option<Arc<dyn DiskSpace>>,
    bytes: u64,
}

impl DiskLimit {
    pub(crate) fn new(space: Arc<dyn DiskSpace>) -> Self {
        Self(Some(space))
    }

    /// Takes disk space before it is written to, without waiting. [`Error::of_path`] keeps a refusal; the work runs again after
    /// [`Self::refresh_for_rerun`].
    pub(crate) fn try_take(&self, bytes: u64) -> io::Result<TakenSpace> {
        let Some(space) = &self.0 else { return Ok(TakenSpace::default()) };
        space.try_take(bytes).map_err(|refused| io::Error::other(Error::OverDiskQuota(refused)))?;
        Ok(TakenSpace { space: Some(Arc::clone(space)), bytes })
    }

    /// Takes disk space, by what is left now.
    pub(crate) async fn take(&self, bytes: u64) -> Result<TakenSpace, Error> {
        loop {
            match self.try_take(bytes) {
                Ok(taken) => return Ok(taken),
                Err(_) if !self.refresh().await? => {}
                Err(_) => return self.try_take(bytes).map_err(|error| Error::of_path(Path::new(""), &error)),
            }
        }
    }

    /// Notes that a folder has another path now, or something else of this size.
    pub(crate) fn moved(&self, bytes: Option<u64>) {
        self.0.iter().for_each(|space| space.moved(bytes));
    }

    /// Whether the account has a limit.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Finds out what is left, after [`Error::OverDiskQuota`], for work that begins again. Returns whether a further refusal is
    /// final.
    pub(crate) async fn refresh_for_rerun(&self) -> Result<bool, Error> {
        self.0.iter().for_each(|space| space.begin_again());
        self.refresh().await
    }

    async fn refresh(&self) -> Result<bool, Error> {
        let Some(space) = &self.0 else { return Ok(true) };
        space.refresh().await.map_err(Error::OverDiskQuota)
    }
}

/// Whether this is the error of [`DiskLimit::try_take`].
pub(crate) fn is_over_disk_quota(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::OverDiskQuota(_)))
}

impl Drop for TakenSpace {
    fn drop(&mut self) {
        self.space.iter().for_each(|space| space.written(self.bytes));
    }
}
