//! Searching for files by name.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use ignore::{DirEntry, WalkState};
use rustix::fs::{AtFlags, CWD, FileType as Kind, statat};
use skep_api::{
    budget::Budget,
    files::{FilesFound, FoundFile, SearchFiles},
    path::encode_path,
};

use super::{
    Cancellation,
    pattern::Pattern,
    walk::{Scope, walk_below},
};
use crate::{
    Error, Roots,
    files::{file_type, modified_at, size},
    roots::FinalLink,
};

pub(super) fn search(
    roots: &Roots,
    request: &SearchFiles,
    cancellation: &Cancellation,
) -> Result<FilesFound, Error> {
    let (pattern, syntax) = Pattern::parse(&request.pattern, request.syntax)?;
    let path = request.path.as_path();
    let folder = roots.find(path, FinalLink::Follow)?;
    if !folder.is_directory() {
        return Err(Error::NotAFolder { path: path.display().to_string() });
    }
    let limit = request.limit as usize;
    let found = Mutex::new((Vec::new(), Budget::default()));
    let scope = Scope { hidden: request.hidden, gitignore: request.gitignore };
    let visit = |entry: &DirEntry, below: &Path| {
        if !pattern.matches(below) {
            return WalkState::Continue;
        }
        let Ok(stat) = statat(CWD, entry.path(), AtFlags::SYMLINK_NOFOLLOW) else {
            return WalkState::Continue;
        };
        let kind = file_type(Kind::from_raw_mode(stat.st_mode));
        if request.r#type.is_some_and(|wanted| wanted != kind) {
            return WalkState::Continue;
        }
        let (path, path_encoding) = encode_path(path.join(below).as_os_str());
        let file = FoundFile {
            path,
            path_encoding,
            r#type: kind,
            size_bytes: size(&stat),
            modified_at: modified_at(&stat),
        };
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, budget) = &mut *found;
        if !budget.try_add(&file) {
            return WalkState::Quit;
        }
        files.push(file);
        // One more than the limit shows that there are more.
        if files.len() > limit { WalkState::Quit } else { WalkState::Continue }
    };
    let whole = walk_below(&folder, scope, cancellation, || visit)?;
    let (mut matches, budget) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let truncated = !whole || matches.len() > limit || budget.is_exhausted();
    matches.sort_by(|one, other| one.path.cmp(&other.path));
    matches.truncate(limit);
    let (path, _) = encode_path(path.as_os_str());
    Ok(FilesFound { path, pattern: request.pattern.clone(), syntax, matches, truncated })
}
