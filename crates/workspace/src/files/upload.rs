//! Writing a file from a stream of any length.

use std::io;

use bytes::Bytes;
use futures_util::{StreamExt, stream::Fuse};
use skep_api::{files::FileWritten, streams::UploadFile};
use tokio::task::spawn_blocking;

use super::{
    entry_locks::EntryLocks,
    pour::Pour,
    temporary::Temporary,
    write::{NEW_MODE, not_placed, place, replaceable, slot_for, written},
};
use crate::{Content, Error, Place, Roots, RunStreamed, roots::Slot, streamed::no_content};

/// The stream is written in blocks of at least this size, in bytes.
const BLOCK_BYTES: usize = 256 << 10;

impl RunStreamed for UploadFile {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(FileWritten, Content), Error> {
        let place = place.clone();
        let locks = place.entry_locks().clone();
        let mut content = content.fuse();
        let mut upload = on_its_thread(move || Upload::begin(&*place.roots()?, self)).await?;
        loop {
            let blocks = gather(&mut content).await?;
            if blocks.is_empty() {
                break;
            }
            upload = on_its_thread(move || upload.write(&blocks)).await?;
        }
        Ok((on_its_thread(move || upload.finish(&locks)).await?, no_content()))
    }
}

/// An upload in progress. The temporary file is removed if this is dropped before [`Self::finish`].
struct Upload {
    request: UploadFile,
    new: Temporary<Slot>,
    pour: Pour,
}

impl Upload {
    fn begin(roots: &Roots, request: UploadFile) -> Result<Self, Error> {
        let path = request.path.as_path();
        let slot = slot_for(roots, path, request.create_parents)?;
        let old = replaceable(&slot, &request.condition, path)?;
        let refused = |error: io::Error| Error::of_path(path, &error);
        let new = Temporary::beside(slot).map_err(refused)?;
        // Fails before the content is sent if this user may not set the owner.
        new.dress(old.as_ref(), request.mode, NEW_MODE).map_err(refused)?;
        Ok(Self { request, new, pour: Pour::new() })
    }

    fn write(mut self, blocks: &[Bytes]) -> Result<Self, Error> {
        let written = blocks.iter().try_for_each(|block| self.pour.write(self.new.file(), block));
        written.map_err(|error| Error::of_path(self.request.path.as_path(), &error))?;
        Ok(self)
    }

    /// Checks the condition again, since the target may have changed during the upload.
    fn finish(self, locks: &EntryLocks) -> Result<FileWritten, Error> {
        let Self { request, mut new, mut pour } = self;
        let path = request.path.as_path();
        let refused = |error: io::Error| Error::of_path(path, &error);
        pour.finish(new.file()).and_then(|()| new.sync()).map_err(refused)?;
        let held = locks.hold(&[new.slot().entry()]).map_err(refused)?;
        let old = replaceable(new.slot(), &request.condition, path)?;
        let now = place(&mut new, old.as_ref(), request.mode, &request.condition)
            .map_err(|error| not_placed(path, &error))?;
        drop(held);
        new.slot().sync_folder().map_err(refused)?;
        Ok(written(path, &now, old.is_none()))
    }
}

/// The next block of the stream. Empty at the end.
async fn gather(content: &mut Fuse<Content>) -> Result<Vec<Bytes>, Error> {
    let (mut blocks, mut length) = (Vec::new(), 0);
    while length < BLOCK_BYTES {
        let Some(block) = content.next().await else { break };
        let block = block.map_err(|error| Error::BodyBroken { reason: error.to_string() })?;
        length += block.len();
        blocks.push(block);
    }
    Ok(blocks)
}

async fn on_its_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(work).await.map_err(|_| Error::Broken)?
}
