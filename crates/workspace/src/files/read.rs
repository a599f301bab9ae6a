//! Reading a window of a file.

use std::{
    io::{IoSliceMut, Read, Seek, SeekFrom},
    path::Path,
};

use rustix::{
    fs::fstat,
    io::{Errno, ReadWriteFlags, preadv2},
};
use skep_api::files::{FileContent, LONGEST_CONTENT, ReadFile};

use super::{answered, content::Form, etag, modified_at, size};
use crate::{
    Error, Roots,
    roots::{Found, Last},
};

/// The largest window that is read on the async thread, in bytes.
const MOST_AT_ONCE: usize = 64 << 10;

pub(super) fn read(roots: &Roots, request: &ReadFile) -> Result<FileContent, Error> {
    let form = Form::by_label(&request.encoding.0)?;
    let path = request.path.as_path();
    let refused = |error: std::io::Error| Error::of_path(path, &error);
    let found = roots.find(path, Last::Follow)?;
    require_file(&found, path)?;
    let mut file = found.read().map_err(refused)?;
    let whole = size(found.stat());
    let wanted = request.limit.unwrap_or(u64::MAX).min(whole.saturating_sub(request.offset));
    if form.digits(wanted) > LONGEST_CONTENT {
        return Err(Error::ContentTooLong { path: path.display().to_string() });
    }
    if wanted > 0 {
        // Not beyond the end: file systems refuse very large offsets.
        file.seek(SeekFrom::Start(request.offset)).map_err(refused)?;
    }
    // If the file grows meanwhile, only the original size is read.
    let mut file = file.take(wanted);
    let content = form.read_down(&mut file, &answered(path).0, refused)?;
    let end = request.offset.saturating_add(wanted - file.limit());
    Ok(answer(form, path, &found, end, content))
}

/// The length of the answer's content, in bytes.
pub(super) fn answer_bytes(found: &Found, request: &ReadFile) -> u64 {
    let wanted = request.limit.unwrap_or(u64::MAX).min(size(found.stat()).saturating_sub(request.offset));
    let digits = Form::by_label(&request.encoding.0).map_or(0, |form| form.digits(wanted));
    digits.min(LONGEST_CONTENT)
}

/// Reads a small window from the page cache (preadv2(2), `RWF_NOWAIT`). `None` leaves it to [`read`].
pub(super) fn at_once(found: &Found, request: &ReadFile) -> Option<FileContent> {
    let form = Form::by_label(&request.encoding.0).ok()?;
    require_file(found, request.path.as_path()).ok()?;
    let file = found.read().ok()?;
    let wanted = request.limit.unwrap_or(u64::MAX).min(size(found.stat()).saturating_sub(request.offset));
    let mut bytes = vec![0; usize::try_from(wanted).ok().filter(|wanted| *wanted <= MOST_AT_ONCE)?];
    if !bytes.is_empty() {
        let mut into = [IoSliceMut::new(&mut bytes)];
        let count = preadv2(&file, &mut into, request.offset, ReadWriteFlags::NOWAIT).ok()?;
        (count == bytes.len()).then_some(())?;
    }
    let path = request.path.as_path();
    let end = request.offset.saturating_add(bytes.len() as u64);
    let content = form.write_down(bytes, &answered(path).0).ok()?;
    Some(answer(form, path, found, end, content))
}

/// The answer for a window that ends at `end`.
fn answer(form: Form, path: &Path, found: &Found, end: u64, content: String) -> FileContent {
    let (named, path_encoding) = answered(path);
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
pub(crate) fn require_file(found: &Found, path: &Path) -> Result<(), Error> {
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
