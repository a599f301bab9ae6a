//! Watching a folder and all below it: each change as a line of JSON.

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

/// How long the end of the folder itself, which the kernel does not tell, may go unnoticed.
const GLANCE: Duration = Duration::from_secs(2);

impl RunStreamed for WatchFolder {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(FolderWatched, Content), Error> {
        let place = place.clone();
        let begun = spawn_blocking(move || {
            let tree = Tree::begin(&*place.roots()?, self.path.as_path())?;
            let news = tree.news().map_err(|error| Error::of_path(self.path.as_path(), &error))?;
            Ok::<_, Error>((tree, news))
        });
        let (tree, news) = begun.await.map_err(|_| Error::Broken)??;
        let answer = FolderWatched { folders: tree.folders() };
        let watch = Watch { tree, news: News::of(news).map_err(|_| Error::Broken)? };
        Ok((answer, Box::pin(stream::unfold(Some(watch), |watch| async move { Some(watch?.next().await) }))))
    }
}

/// A tree, and what tells that something happened in it.
struct Watch {
    tree: Tree,
    news: News,
}

impl Watch {
    /// The next changes. Behind an error, and where the folder itself is gone, nothing follows.
    async fn next(mut self) -> (io::Result<Bytes>, Option<Self>) {
        loop {
            if let Err(error) = self.news.come(self.tree.has_more()).await {
                return (Err(error), None);
            }
            let mut tree = self.tree;
            let taken = spawn_blocking(move || {
                let changes = tree.take();
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

/// Tells that changes wait to be taken.
struct News(AsyncFd<OwnedFd>);

impl News {
    fn of(inotify: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` keeps its one descriptor open for as long as the `AsyncFd` owns it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }?))
    }

    /// Waits until something may have happened; not where more is known to wait.
    async fn come(&self, more: bool) -> io::Result<()> {
        if !more {
            // Forgotten before it is read: what comes meanwhile is told anew.
            match timeout(GLANCE, self.0.readable()).await {
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
        // Texts always serialize.
        let _ = serde_json::to_writer(&mut lines, change);
        lines.push(b'\n');
    }
    lines.into()
}
