//! Watching a folder and everything below it. The answer is a stream of changes, one JSON document per line.

mod changes;
mod tree;

#[cfg(test)]
mod tests;

use std::{io, os::fd::OwnedFd, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use skep_api::streams::{FileChange, FolderWatched, WatchFolder};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::spawn_blocking,
    time::timeout,
};

use crate::{Content, Error, Place, RunStreamed};
use tree::Tree;

/// The interval at which the watched folder itself is checked for removal, which inotify does not report in time.
const REMOVAL_CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl RunStreamed for WatchFolder {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(FolderWatched, Content), Error> {
        let place = place.clone();
        let begun = spawn_blocking(move || {
            let tree = Tree::watch(&*place.roots()?, self.path.as_path())?;
            let descriptor =
                tree.descriptor().map_err(|error| Error::of_path(self.path.as_path(), &error))?;
            Ok::<_, Error>((tree, descriptor))
        });
        let (tree, descriptor) = begun.await.map_err(|_| Error::WorkerFailed)??;
        let answer = FolderWatched { folders: tree.folders() };
        let watch =
            WatchState { tree, readiness: Readiness::new(descriptor).map_err(|_| Error::WorkerFailed)? };
        Ok((answer, Box::pin(stream::unfold(Some(watch), |watch| async move { Some(watch?.next().await) }))))
    }
}

/// A watched tree and the readiness of its inotify descriptor.
struct WatchState {
    tree: Tree,
    readiness: Readiness,
}

impl WatchState {
    /// Waits for the next changes. The stream ends after an error, or when the watched folder is removed.
    async fn next(mut self) -> (io::Result<Bytes>, Option<Self>) {
        loop {
            if let Err(error) = self.readiness.wait(self.tree.has_more()).await {
                return (Err(error), None);
            }
            let mut tree = self.tree;
            let taken = spawn_blocking(move || {
                let changes = tree.take_changes();
                (tree, changes)
            });
            let changes = match taken.await {
                Ok((tree, Ok(changes))) => {
                    self.tree = tree;
                    changes
                }
                Ok((_, Err(error))) => return (Err(error), None),
                Err(error) => return (Err(io::Error::other(error)), None),
            };
            if self.tree.is_gone() {
                return (Ok(lines(&changes)), None);
            }
            if !changes.is_empty() {
                return (Ok(lines(&changes)), Some(self));
            }
        }
    }
}

/// Waits for changes to read.
struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    fn new(inotify: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` keeps its one descriptor open for as long as the `AsyncFd` owns it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }?))
    }

    /// Waits until changes may be available, at most for [`REMOVAL_CHECK_INTERVAL`]. Returns at once if `more` are known to
    /// be queued.
    async fn wait(&self, more: bool) -> io::Result<()> {
        if !more {
            // Cleared before reading, so that a change during the read sets it again.
            match timeout(REMOVAL_CHECK_INTERVAL, self.0.readable()).await {
                Ok(ready) => ready?.clear_ready(),
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

fn lines(changes: &[FileChange]) -> Bytes {
    let mut lines = Vec::new();
    for change in changes {
        // Serialising a `FileChange` cannot fail.
        let _ = serde_json::to_writer(&mut lines, change);
        lines.push(b'\n');
    }
    lines.into()
}
