//! Reading a window of a file.

use std::{
    io::{IoSliceMut, Read, Seek, SeekFrom},
    path::Path,
};

use rustix::{
    fs::fstat,
    io::{Errno, ReadWriteFlags, preadv2},
};
use skep_api::files::{FileContent, MAX_CONTENT_BYTES, ReadFile};

use super::{content::TextEncoding, encoded_path, etag, modified_at, on_disk, size};
use crate::{
    Error, Place, Roots, Run,
    roots::{FinalLink, PathHandle},
};

/// The largest window that is read on the async thread, in bytes.
const MAX_CACHED_READ: usize = 64 << 10;
/// The most that a byte of a text takes in JSON, in bytes: a control character is escaped.
const MAX_ESCAPED_BYTES: u64 = 6;

impl Run for ReadFile {
    /// What the requested window takes as JSON, limited by the size of the file.
    async fn memory_bytes(&self, place: &Place) -> u64 {
        let path = self.path.clone();
        let found = match place.find_cached(path.as_path()) {
            Some(found) => Some(found),
            None => on_disk(place, move |roots| roots.find(path.as_path(), FinalLink::Follow)).await.ok(),
        };
        found.map_or(0, |found| answer_bytes(&found, self))
    }

    async fn run(self, place: &Place) -> Result<FileContent, Error> {
        // Cached data is read on this thread: handing it to another one takes longer.
        if let Some(content) =
            place.find_cached(self.path.as_path()).and_then(|found| read_cached(&found, &self))
        {
            return Ok(content);
        }
        on_disk(place, move |roots| read(roots, &self)).await
    }
}

pub(super) fn read(roots: &Roots, request: &ReadFile) -> Result<FileContent, Error> {
    let form = TextEncoding::by_label(&request.encoding.0)?;
    let path = request.path.as_path();
    let refused = |error: std::io::Error| Error::of_path(path, &error);
    let found = roots.find(path, FinalLink::Follow)?;
    require_file(&found, path)?;
    let mut file = found.open_for_reading().map_err(refused)?;
    let whole = size(found.stat());
    let wanted = request.limit.unwrap_or(u64::MAX).min(whole.saturating_sub(request.offset));
    if form.encoded_len(wanted) > MAX_CONTENT_BYTES {
        return Err(Error::ContentTooLong { path: path.display().to_string() });
    }
    if wanted > 0 {
        // Not beyond the end: file systems refuse very large offsets.
        file.seek(SeekFrom::Start(request.offset)).map_err(refused)?;
    }
    // If the file grows meanwhile, only the original size is read.
    let mut file = file.take(wanted);
    let content = form.encode_from(&mut file, &encoded_path(path).0, refused)?;
    let end = request.offset.saturating_add(wanted - file.limit());
    Ok(answer(form, path, &found, end, content))
}

/// The most that the answer's content takes in JSON, in bytes.
fn answer_bytes(found: &PathHandle, request: &ReadFile) -> u64 {
    let wanted = request.limit.unwrap_or(u64::MAX).min(size(found.stat()).saturating_sub(request.offset));
    let length = TextEncoding::by_label(&request.encoding.0).map_or(0, |form| match form {
        TextEncoding::Text(_) => wanted.saturating_mul(MAX_ESCAPED_BYTES),
        TextEncoding::Base64 | TextEncoding::Hex => form.encoded_len(wanted),
    });
    length.min(MAX_CONTENT_BYTES)
}

/// Reads a small window from the page cache (preadv2(2), `RWF_NOWAIT`). `None` leaves it to [`read`].
pub(super) fn read_cached(found: &PathHandle, request: &ReadFile) -> Option<FileContent> {
    let form = TextEncoding::by_label(&request.encoding.0).ok()?;
    require_file(found, request.path.as_path()).ok()?;
    let file = found.open_for_reading().ok()?;
    let wanted = request.limit.unwrap_or(u64::MAX).min(size(found.stat()).saturating_sub(request.offset));
    let mut bytes = vec![0; usize::try_from(wanted).ok().filter(|wanted| *wanted <= MAX_CACHED_READ)?];
    if !bytes.is_empty() {
        let mut into = [IoSliceMut::new(&mut bytes)];
        let count = preadv2(&file, &mut into, request.offset, ReadWriteFlags::NOWAIT).ok()?;
        (count == bytes.len()).then_some(())?;
    }
    let path = request.path.as_path();
    let end = request.offset.saturating_add(bytes.len() as u64);
    let content = form.encode(bytes, &encoded_path(path).0).ok()?;
    Some(answer(form, path, found, end, content))
}

/// The answer for a window that ends at `end`.
fn answer(form: TextEncoding, path: &Path, found: &PathHandle, end: u64, content: String) -> FileContent {
    let (named, path_encoding) = encoded_path(path);
    let whole = size(found.stat());
    let truncated = end < whole;
    FileContent {
        content,
        path: named,
        path_encoding,
        encoding: form.name(),
        size_bytes: whole,
        modified_at: modified_at(found.stat()),
        etag: etag::of(found.stat()),
        truncated,
    }
}

/// Fails unless it is a regular file.
pub(crate) fn require_file(found: &PathHandle, path: &Path) -> Result<(), Error> {
    match found.kind() {
        rustix::fs::FileType::RegularFile => Ok(()),
        rustix::fs::FileType::Directory => Err(Error::IsADirectory { path: path.display().to_string() }),
        _ => Err(Error::of_path(path, &Errno::INVAL.into())),
    }
}

/// The current metadata of an open file.
pub(super) fn stat_now(file: &std::fs::File, path: &Path) -> Result<rustix::fs::Stat, Error> {
    fstat(file).map_err(|error| Error::of_path(path, &error.into()))
}
