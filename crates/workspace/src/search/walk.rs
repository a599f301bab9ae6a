//! Walks a folder on several threads.

use std::{
    ffi::OsStr,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use ignore::{DirEntry, WalkBuilder, WalkState};

use super::{Cancellation, ignored::Ignored};
use crate::{Error, roots::PathHandle};

/// The most threads of one search. They mostly wait for disks.
const MAX_THREADS: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    pub(super) hidden: bool,
    pub(super) gitignore: bool,
}

/// Visits each entry below a folder with its relative path. Each thread gets its own visitor, which can end the walk.
/// Returns whether the walk was not cancelled.
///
/// Does not follow links and does not enter mount points.
pub(super) fn walk_below<L: FnMut(&DirEntry, &Path) -> WalkState + Send>(
    folder: &PathHandle,
    scope: Scope,
    cancellation: &Cancellation,
    make_visitor: impl Fn() -> L,
) -> Result<bool, Error> {
    // By the open handle, since the path may lead elsewhere by now. The final `/` makes the walk enter the folder.
    let start = PathBuf::from(format!("{}/", folder.proc_path()));
    let mut walk = WalkBuilder::new(&start);
    walk.standard_filters(false)
        .hidden(!scope.hidden)
        .follow_links(false)
        .same_file_system(true)
        .threads(std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS));
    if scope.gitignore {
        let top = folder.as_fd().try_clone_to_owned().map_err(Error::NotConfined)?;
        let (ignored, start) = (Ignored::below(top), start.clone());
        walk.filter_entry(move |entry| {
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            relative_path(&start, entry.path()).is_none_or(|below| !ignored.contains(below, is_folder))
        });
    }
    let whole = AtomicBool::new(true);
    walk.build_parallel().run(|| {
        let (mut look, whole, start) = (make_visitor(), &whole, &start);
        Box::new(move |entry| {
            if cancellation.is_cancelled() {
                whole.store(false, Ordering::Relaxed);
                return WalkState::Quit;
            }
            // Entries that cannot be read or were removed are skipped.
            let Ok(entry) = entry else { return WalkState::Continue };
            match relative_path(start, entry.path()) {
                Some(below) => look(&entry, below),
                None => WalkState::Continue,
            }
        })
    });
    Ok(whole.into_inner())
}

/// The path of an entry relative to the start of the walk; `None` for the start itself.
fn relative_path<'p>(start: &Path, path: &'p Path) -> Option<&'p Path> {
    match path.as_os_str().as_bytes().get(start.as_os_str().len()..) {
        Some(below @ [_, ..]) => Some(Path::new(OsStr::from_bytes(below))),
        _ => None,
    }
}
