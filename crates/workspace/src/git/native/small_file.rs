//! Reads small files of a repository.

use std::path::Path;

use rustix::fs::FileType;

use crate::{Error, Roots, roots::FinalLink};

/// Limit in bytes.
const MAX_BYTES: u64 = 256 << 10;

/// The content of a file; empty if it does not exist. `None` if it is not a regular file or too long.
pub(super) fn read_small_file(roots: &Roots, path: &Path) -> Option<Vec<u8>> {
    let found = match roots.find(path, FinalLink::NoFollow) {
        Err(Error::UnknownPath { .. }) => return Some(Vec::new()),
        found => found.ok().filter(|found| found.kind() == FileType::RegularFile)?,
    };
    let text = found.content(MAX_BYTES + 1).ok()?;
    (text.len() as u64 <= MAX_BYTES).then_some(text)
}
