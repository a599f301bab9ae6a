//! Reading a window of a file.

use std::{
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use rustix::{fs::fstat, io::Errno};
use skep_api::files::{FileContent, LONGEST_CONTENT, ReadFile};

use super::{answered, content::Form, etag, modified_at, size};
use crate::{
    Error, Roots,
    roots::{Found, Last},
};

pub(super) fn read(roots: &Roots, request: &ReadFile) -> Result<FileContent, Error> {
    let form = Form::by_label(&request.encoding.0)?;
    let path = request.path.as_path();
    let refused = |error: std::io::Error| Error::of_path(path, &error);
    let found = roots.find(path, Last::Follow)?;
    require_file(&found, path)?;
    let mut file = found.read().map_err(refused)?;
    let whole = size(found.stat());
    let wanted = request.limit.unwrap_or(u64::MAX).min(whole.saturating_sub(request.offset));
    if wanted > LONGEST_CONTENT {
        return Err(Error::ContentTooLong { path: path.display().to_string(), bytes: wanted });
    }
    file.seek(SeekFrom::Start(request.offset)).map_err(refused)?;
    let mut bytes = Vec::new();
    // One that grows meanwhile is read as far as it was.
    file.take(wanted).read_to_end(&mut bytes).map_err(refused)?;
    let (told, path_encoding) = answered(path);
    let truncated = bytes.len() as u64 != whole;
    Ok(FileContent {
        content: form.write_down(bytes, &told)?,
        path: told,
        path_encoding,
        encoding: form.name(),
        size_bytes: whole,
        modified_at: modified_at(found.stat()),
        etag: etag::of(found.stat()),
        truncated,
    })
}

/// Refuses what has no content.
pub(crate) fn require_file(found: &Found, path: &Path) -> Result<(), Error> {
    match found.kind() {
        rustix::fs::FileType::RegularFile => Ok(()),
        rustix::fs::FileType::Directory => Err(Error::IsADirectory { path: path.display().to_string() }),
        _ => Err(Error::of_path(path, &Errno::INVAL.into())),
    }
}

/// What the kernel says of an open file now.
pub(super) fn stat_now(file: &std::fs::File, path: &Path) -> Result<rustix::fs::Stat, Error> {
    fstat(file).map_err(|error| Error::of_path(path, &error.into()))
}
