//! A file as a stream of blocks: one is read ahead while the one before it is sent.

use std::{fs::File, io, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rustix::{
    buffer::spare_capacity,
    fs::{Advice, fadvise},
    io::{Errno, pread},
};
use skep_api::streams::{Part, StreamFile, StreamedFile};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{etag, modified_at, on_disk, read::require_file, size};
use crate::{Content, Error, Place, Roots, RunStreamed, roots::Last, streamed::no_content};

/// What is read at once, in bytes.
const BLOCK_BYTES: u64 = 256 << 10;

impl RunStreamed for StreamFile {
    async fn run_streamed(self, _: Content, place: &Place) -> Result<(StreamedFile, Content), Error> {
        let (answer, opened) = on_disk(place, move |roots| open(roots, &self)).await?;
        Ok((answer, opened.map_or_else(no_content, Opened::into_content)))
    }
}

/// A file whose first block was read.
struct Opened {
    file: Arc<File>,
    block: Bytes,
    /// Where the next block begins.
    at: u64,
    /// What is left behind the block.
    left: u64,
}

fn open(roots: &Roots, request: &StreamFile) -> Result<(StreamedFile, Option<Opened>), Error> {
    let path = request.path.as_path();
    let refused = |error: io::Error| Error::of_path(path, &error);
    let found = roots.find(path, Last::Follow)?;
    require_file(&found, path)?;
    let file = found.read().map_err(refused)?;
    let (whole, etag) = (size(found.stat()), etag::of(found.stat()));
    let wanted = request.range.filter(|_| request.if_range.as_ref().is_none_or(|tag| *tag == etag));
    let part = match wanted.map(|range| range.within(whole)) {
        None => Part::Whole,
        Some(Some((first, length))) => Part::Range { first, length },
        Some(None) => Part::Unsatisfiable,
    };
    let (first, length) = match part {
        Part::Whole => (0, whole),
        Part::Range { first, length } => (first, length),
        Part::Unsatisfiable => (0, 0),
    };
    let answer = StreamedFile { size_bytes: whole, modified_at: modified_at(found.stat()), etag, part };
    if length == 0 {
        return Ok((answer, None));
    }
    if length > BLOCK_BYTES {
        // The kernel then reads further ahead; where it does not, nothing is lost.
        let _ = fadvise(&file, first, None, Advice::Sequential);
    }
    let block = read_block(&file, first, length).map_err(refused)?;
    let came = block.len() as u64;
    Ok((answer, Some(Opened { file: Arc::new(file), block, at: first + came, left: length - came })))
}

impl Opened {
    fn into_content(self) -> Content {
        let Self { file, block, at, left } = self;
        let ahead = Ahead { next: next(&file, at, left), file, at, left };
        let first = stream::once(std::future::ready(whole(block)));
        Box::pin(first.chain(stream::unfold(ahead, Ahead::step)))
    }
}

/// A file of which the next block is being read.
struct Ahead {
    file: Arc<File>,
    at: u64,
    left: u64,
    next: Option<JoinHandle<io::Result<Bytes>>>,
}

impl Ahead {
    /// The next block; the one behind it is begun. After an error, as at the end, there is none.
    async fn step(mut self) -> Option<(io::Result<Bytes>, Self)> {
        let block = self.next.take()?.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let block = block.and_then(whole);
        if let Ok(block) = &block {
            self.at += block.len() as u64;
            self.left -= block.len() as u64;
            self.next = next(&self.file, self.at, self.left);
        }
        Some((block, self))
    }
}

/// A file that ends before the block does is not what was promised.
fn whole(block: Bytes) -> io::Result<Bytes> {
    if block.is_empty() {
        let shorter = "the file became shorter while it was read";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, shorter));
    }
    Ok(block)
}

/// Begins to read the next block, where there is one.
fn next(file: &Arc<File>, at: u64, left: u64) -> Option<JoinHandle<io::Result<Bytes>>> {
    let file = Arc::clone(file);
    (left > 0).then(|| spawn_blocking(move || read_block(&file, at, left)))
}

/// At most a block. Empty at the end of the file.
fn read_block(file: &File, at: u64, left: u64) -> io::Result<Bytes> {
    let wanted = usize::try_from(left.min(BLOCK_BYTES)).unwrap_or_default();
    let mut block = Vec::with_capacity(wanted);
    while let Err(error) = pread(file, spare_capacity(&mut block), at) {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    // The allocator may have given more room than was asked for.
    block.truncate(wanted);
    Ok(block.into())
}
