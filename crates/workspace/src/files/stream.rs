//! Streaming a file in blocks. The next block is read while the current one is sent.

use std::{fs::File, io, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rustix::{
    buffer::spare_capacity,
    fs::{Advice, fadvise},
    io::{Errno, pread},
};
use skep_api::streams::{FilePart, StreamFile, StreamedFile};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{etag, modified_at, on_disk, read::require_file, size};
use crate::{Content, Error, Place, Roots, RunStreamed, roots::FinalLink, streamed::no_content};

/// The size of a block, in bytes.
const BLOCK_BYTES: u64 = 256 << 10;

impl RunStreamed for StreamFile {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(StreamedFile, Content), Error> {
        let (answer, opened) = on_disk(place, move |roots| open(roots, &self)).await?;
        Ok((answer, opened.map_or_else(no_content, Opened::into_content)))
    }
}

/// A file whose first block has been read.
struct Opened {
    file: Arc<File>,
    block: Bytes,
    /// The offset of the next block.
    at: u64,
    /// The number of bytes after the block.
    left: u64,
}

fn open(roots: &Roots, request: &StreamFile) -> Result<(StreamedFile, Option<Opened>), Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| Error::of_path(path, &error);
    let found = roots.find(path, FinalLink::Follow)?;
    require_file(&found, path)?;
    let file = found.open_for_reading().map_err(refused)?;
    let (whole, etag) = (size(found.stat()), etag::of(found.stat()));
    let wanted = request.range.filter(|_| request.if_range.as_ref().is_none_or(|tag| *tag == etag));
    let part = match wanted.map(|range| range.within(whole)) {
        None => FilePart::Whole,
        Some(Some((first, length))) => FilePart::Range { first, length },
        Some(None) => FilePart::Unsatisfiable,
    };
    let (first, length) = match part {
        FilePart::Whole => (0, whole),
        FilePart::Range { first, length } => (first, length),
        FilePart::Unsatisfiable => (0, 0),
    };
    let answer = StreamedFile { size_bytes: whole, modified_at: modified_at(found.stat()), etag, part };
    if length == 0 {
        return Ok((answer, None));
    }
    if length > BLOCK_BYTES {
        // The kernel then reads ahead further. A failure is harmless.
        let _ = fadvise(&file, first, None, Advice::Sequential);
    }
    let block = read_block(&file, first, length).map_err(refused)?;
    let came = block.len() as u64;
    Ok((answer, Some(Opened { file: Arc::new(file), block, at: first + came, left: length - came })))
}

impl Opened {
    fn into_content(self) -> Content {
        let Self { file, block, at, left } = self;
        let ahead = ReadAhead { next: spawn_read(&file, at, left), file, at, left };
        let first = stream::once(std::future::ready(require_content(block)));
        Box::pin(first.chain(stream::unfold(ahead, ReadAhead::step)))
    }
}

/// A file whose next block is being read.
struct ReadAhead {
    file: Arc<File>,
    at: u64,
    left: u64,
    next: Option<JoinHandle<io::Result<Bytes>>>,
}

impl ReadAhead {
    /// Returns the next block and starts to read the one after it. The stream ends after an error.
    async fn step(mut self) -> Option<(io::Result<Bytes>, Self)> {
        let block = self.next.take()?.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let block = block.and_then(require_content);
        if let Ok(block) = &block {
            self.at += block.len() as u64;
            self.left -= block.len() as u64;
            self.next = spawn_read(&self.file, self.at, self.left);
        }
        Some((block, self))
    }
}

/// Fails for an empty block: the file was truncated after its size was announced.
fn require_content(block: Bytes) -> io::Result<Bytes> {
    if block.is_empty() {
        let shorter = "the file became shorter while it was read";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, shorter));
    }
    Ok(block)
}

/// Starts to read the next block, if there is one.
fn spawn_read(file: &Arc<File>, at: u64, left: u64) -> Option<JoinHandle<io::Result<Bytes>>> {
    let file = Arc::clone(file);
    (left > 0).then(|| spawn_blocking(move || read_block(&file, at, left)))
}

/// Reads at most one block. Empty at the end of the file.
fn read_block(file: &File, at: u64, left: u64) -> io::Result<Bytes> {
    let wanted = usize::try_from(left.min(BLOCK_BYTES)).unwrap_or_default();
    let mut block = Vec::with_capacity(wanted);
    while let Err(error) = pread(file, spare_capacity(&mut block), at) {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    // The allocator may have provided a larger buffer.
    block.truncate(wanted);
    Ok(block.into())
}
