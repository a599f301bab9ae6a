//! Small files of a repository.

use std::path::Path;

use rustix::fs::FileType;

use crate::{Error, Roots, roots::Last};

/// The longest that is read, in bytes.
const LONGEST: u64 = 256 << 10;

/// What a file says; nothing where there is none. `None` for what is no file, or too long.
pub(super) fn small(roots: &Roots, path: &Path) -> Option<Vec<u8>> {
    let found = match roots.find(path, Last::Keep) {
        Err(Error::UnknownPath { .. }) => return Some(Vec::new()),
        found => found.ok().filter(|found| found.kind() == FileType::RegularFile)?,
    };
    let text = found.content(LONGEST + 1).ok()?;
    (text.len() as u64 <= LONGEST).then_some(text)
}
