//! File operations below the roots of a workspace: read, write, list, create, move, copy and remove.

mod content;
mod direct_writer;
mod entry_locks;
mod etag;
mod link;
mod list;
mod make;
mod read;
mod relocate;
mod remove;
mod stream;
mod temporary;
mod upload;
mod write;

#[cfg(test)]
mod tests;

use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{FileType as Kind, Stat};
use skep_api::{
    files::{
        CopyFile, FileType, ListFolder, MakeFolder, MakeLink, MoveFile, ReadFile, RemoveFile, WriteFile,
    },
    path::{PathEncoding, encode_path},
};

pub use entry_locks::EntryLocks;
pub(crate) use read::require_file;
pub(crate) use remove::entries;
pub(crate) use temporary::is_temporary;

use crate::{Error, Place, Roots, Run, roots::FinalLink};

macro_rules! run_on_disk {
    ($($operation:ident by $work:path),+ $(,)?) => {
        $(impl Run for $operation {
            async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
                on_disk(place, move |roots| $work(roots, &self)).await
            }
        })+
    };
}

run_on_disk! {
    ListFolder by list::list,
    MakeFolder by make::make,
}

macro_rules! run_with_locks {
    ($($operation:ident by $work:path),+ $(,)?) => {
        $(impl Run for $operation {
            async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
                let locks = place.entry_locks().clone();
                on_disk(place, move |roots| $work(roots, &locks, &self)).await
            }
        })+
    };
}

run_with_locks! {
    MakeLink by link::make,
    RemoveFile by remove::remove,
    MoveFile by relocate::move_file,
    CopyFile by relocate::copy_file,
}

impl Run for WriteFile {
    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        let (locks, context) = (place.entry_locks().clone(), place.shared_context());
        on_disk(place, move |roots| write::write(roots, &locks, &self, &context.condition)).await
    }
}

impl Run for ReadFile {
    /// The length of the requested window, limited by the size of the file.
    async fn memory_bytes(&self, place: &Place) -> u64 {
        let path = self.path.clone();
        let found = match place.find_cached(path.as_path()) {
            Some(found) => Some(found),
            None => on_disk(place, move |roots| roots.find(path.as_path(), FinalLink::Follow)).await.ok(),
        };
        found.map_or(0, |found| read::answer_bytes(&found, self))
    }

    async fn run(self, place: &Place) -> Result<Self::Answer, Error> {
        // Cached data is read on this thread: handing it to another one takes longer.
        if let Some(content) =
            place.find_cached(self.path.as_path()).and_then(|found| read::read_cached(&found, &self))
        {
            return Ok(content);
        }
        on_disk(place, move |roots| read::read(roots, &self)).await
    }
}

/// Runs work that may block on the disk on a thread for blocking work.
async fn on_disk<T: Send + 'static>(
    place: &Place,
    work: impl FnOnce(&Roots) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let place = place.clone();
    let done = tokio::task::spawn_blocking(move || work(&*place.roots()?));
    done.await.map_err(|_| Error::WorkerFailed)?
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
