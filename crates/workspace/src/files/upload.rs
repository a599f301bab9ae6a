//! Writing a file from a stream of any length.

use std::io;

use bytes::Bytes;
use futures_util::{StreamExt, stream::Fuse};
use skep_api::{files::FileWritten, streams::UploadFile};
use tokio::task::spawn_blocking;

use super::{
    adding_on_disk,
    direct_writer::DirectWriter,
    entry_locks::EntryLocks,
    size,
    temporary::Temporary,
    write::{NEW_MODE, check_target, persist, persist_error, target_slot, written},
};
use crate::{
    Content, ENTRY_BYTES, Error, Place, Roots, RunStreamed, disk_space::DiskLimit, roots::Slot,
    streamed::no_content,
};

/// The stream is written in blocks of at least this size, in bytes, unless its parts are very small.
const BLOCK_BYTES: usize = 256 << 10;
/// A block consists of at most this many parts. A part may be a single byte that keeps the whole buffer it was received in.
const MAX_PARTS: usize = 64;

impl RunStreamed for UploadFile {
    async fn run_streamed(self, content: Content, place: &Place) -> Result<(FileWritten, Content), Error> {
        let (locks, disk) = (place.entry_locks().clone(), place.disk_limit());
        let mut content = content.fuse();
        let limit = disk.clone();
        let begin = move |roots: &Roots| Upload::begin(roots, &limit, self.clone());
        let mut upload = adding_on_disk(place, begin).await?;
        loop {
            let blocks = gather(&mut content).await?;
            if blocks.is_empty() {
                break;
            }
            let taken = disk.take(blocks.iter().map(|block| block.len() as u64).sum()).await?;
            upload = run_blocking(move || {
                let _taken = taken;
                upload.write(&blocks)
            })
            .await?;
        }
        let limit = disk.clone();
        Ok((run_blocking(move || upload.finish(&locks, &limit)).await?, no_content()))
    }
}

/// An upload in progress. The temporary file is removed if this is dropped before [`Self::finish`].
struct Upload {
    request: UploadFile,
    new: Temporary<Slot>,
    writer: DirectWriter,
}

impl Upload {
    fn begin(roots: &Roots, disk: &DiskLimit, request: UploadFile) -> Result<Self, Error> {
        let path = request.path.as_path();
        let slot = target_slot(roots, disk, path, request.create_parents)?;
        let old = check_target(&slot, &request.condition, path)?;
        let refused = |error: io::Error| Error::of_path(path, &error);
        let _taken = disk.try_take(ENTRY_BYTES).map_err(refused)?;
        let new = Temporary::create_beside(slot).map_err(refused)?;
        // Fails before the content is sent if this user may not set the owner.
        new.set_mode_and_owner(old.as_ref(), request.mode, NEW_MODE).map_err(refused)?;
        Ok(Self { request, new, writer: DirectWriter::new() })
    }

    fn write(mut self, blocks: &[Bytes]) -> Result<Self, Error> {
        let written = blocks.iter().try_for_each(|block| self.writer.write(self.new.file(), block));
        written.map_err(|error| Error::of_path(self.request.path.as_path(), &error))?;
        Ok(self)
    }

    /// Checks the condition again, since the target may have changed during the upload.
    fn finish(self, locks: &EntryLocks, disk: &DiskLimit) -> Result<FileWritten, Error> {
        let Self { request, mut new, writer: mut pour } = self;
        let path = request.path.as_path();
        let refused = |error: io::Error| Error::of_path(path, &error);
        pour.finish(new.file()).and_then(|()| new.sync()).map_err(refused)?;
        let held = locks.lock(&[new.slot().entry()]).map_err(refused)?;
        let old = check_target(new.slot(), &request.condition, path)?;
        let now = persist(&mut new, old.as_ref(), request.mode, &request.condition)
            .map_err(|error| persist_error(path, &error))?;
        disk.moved(Some(size(&now)));
        drop(held);
        new.slot().sync_folder().map_err(refused)?;
        Ok(written(path, &now, old.is_none()))
    }
}

/// The next block of the stream. Empty at the end.
async fn gather(content: &mut Fuse<Content>) -> Result<Vec<Bytes>, Error> {
    let (mut blocks, mut length) = (Vec::new(), 0);
    while length < BLOCK_BYTES && blocks.len() < MAX_PARTS {
        let Some(block) = content.next().await else { break };
        let block = block.map_err(|error| Error::BodyBroken { reason: error.to_string() })?;
        length += block.len();
        blocks.push(block);
    }
    Ok(blocks)
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(work).await.map_err(|_| Error::WorkerFailed)?
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_block_of_tiny_parts_is_short_and_one_of_others_is_not() {
        for (part, parts) in [(1, MAX_PARTS), (BLOCK_BYTES / MAX_PARTS, MAX_PARTS), (BLOCK_BYTES / 4, 4)] {
            let endless = stream::repeat_with(move || Ok(Bytes::from(vec![0; part])));
            let mut content = (Box::pin(endless) as Content).fuse();
            assert_eq!(gather(&mut content).await.unwrap().len(), parts, "{part}");
        }
    }
}
