//! File operations below the roots of a workspace: read, write, list, create, move, copy and remove.

mod content;
mod direct_writer;
mod entry_locks;
mod etag;
mod link;
mod list;
mod make;
mod occupied;
mod read;
mod relocate;
mod remove;
mod stream;
mod temporary;
mod upload;
mod write;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

use jiff::Timestamp;
use rustix::fs::{FileType as Kind, Stat};
use skep_api::{
    files::FileType,
    path::{PathEncoding, encode_path},
};

pub use entry_locks::EntryLocks;
pub use occupied::occupied_bytes;
pub(crate) use read::require_file;
pub(crate) use remove::entries;
pub(crate) use temporary::is_temporary;

use crate::{Error, Place, Roots};

/// Runs work that may block on the disk on a thread for blocking work.
async fn on_disk<T: Send + 'static>(
    place: &Place,
    work: impl FnOnce(&Roots) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let place = place.clone();
    let done = tokio::task::spawn_blocking(move || work(&*place.roots()?));
    done.await.map_err(|_| Error::WorkerFailed)?
}

/// As [`on_disk`], for work that takes disk space. If it is refused, it has left nothing but parent folders, and runs again once
/// it is known what is left.
async fn adding_on_disk<T: Send + 'static>(
    place: &Place,
    work: impl Fn(&Roots) -> Result<T, Error> + Send + Sync + 'static,
) -> Result<T, Error> {
    let work = Arc::new(work);
    let run = || {
        let work = Arc::clone(&work);
        on_disk(place, move |roots| work(roots))
    };
    let mut is_final = false;
    loop {
        match run().await {
            Err(Error::OverDiskQuota(_)) if !is_final => {
                is_final = place.disk_limit().refresh_for_rerun().await?;
            }
            done => return done,
        }
    }
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::RegularFile => FileType::File,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        _ => FileType::Other,
    }
}

pub(crate) fn modified_at(stat: &Stat) -> Timestamp {
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or_default();
    // Years beyond 9999 do not fit into a `Timestamp`.
    Timestamp::new(stat.st_mtime, nanoseconds).unwrap_or(Timestamp::MAX)
}

pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// The text of a path for an answer, and its encoding.
fn encoded_path(path: impl AsRef<Path>) -> (String, Option<PathEncoding>) {
    encode_path(path.as_ref().as_os_str())
}
