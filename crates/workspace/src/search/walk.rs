//! All that lies below a folder, looked at by several threads.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use ignore::{DirEntry, WalkBuilder, WalkState};

use super::Leash;
use crate::{Error, roots::Found};

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    pub(super) hidden: bool,
    pub(super) gitignore: bool,
}

/// The files that say what is left out. The library opens them before anybody else sees them.
const RULES: [&str; 3] = [".gitignore", ".ignore", ".git/info/exclude"];

/// Whether a folder's rules can be read: a FIFO in their place would hold the search for ever.
fn may_be_entered(folder: &Path) -> bool {
    let is_file = |name: &&str| folder.join(name).metadata().map_or(true, |found| found.is_file());
    RULES.iter().all(is_file)
}

/// Shows each entry below a folder, with its path below it, until somebody has enough; each thread has a look of its own.
/// Whether all were shown.
///
/// No link is followed, and no other file system entered.
pub(super) fn each_below<L: FnMut(&DirEntry, &Path) -> WalkState + Send>(
    folder: &Found,
    scope: Scope,
    leash: &Leash,
    look: impl Fn() -> L,
) -> Result<bool, Error> {
    // By the handle: the folder's name could lead elsewhere by now. The last `/` makes it be entered.
    let start = PathBuf::from(format!("{}/", folder.own_name()));
    let mut walk = WalkBuilder::new(&start);
    walk.standard_filters(false)
        .hidden(!scope.hidden)
        .follow_links(false)
        .same_file_system(true)
        .git_ignore(scope.gitignore)
        .git_exclude(scope.gitignore)
        .ignore(scope.gitignore)
        .require_git(false)
        .threads(std::thread::available_parallelism().map_or(1, usize::from));
    if scope.gitignore {
        if !may_be_entered(&start) {
            return Ok(true);
        }
        walk.filter_entry(|entry| {
            !entry.file_type().is_some_and(|kind| kind.is_dir()) || may_be_entered(entry.path())
        });
    }
    let whole = AtomicBool::new(true);
    walk.build_parallel().run(|| {
        let (mut look, whole, start) = (look(), &whole, &start);
        Box::new(move |entry| {
            if leash.is_cut() {
                whole.store(false, Ordering::Relaxed);
                return WalkState::Quit;
            }
            // What cannot be read, or is gone since, is not there for who searches.
            let Ok(entry) = entry else { return WalkState::Continue };
            // The walk puts names behind its start.
            match entry.path().as_os_str().as_bytes().get(start.as_os_str().len()..) {
                Some(below @ [_, ..]) => look(&entry, Path::new(OsStr::from_bytes(below))),
                _ => WalkState::Continue,
            }
        })
    });
    Ok(whole.into_inner())
}
