//! Walks a work tree for files that differ from the index and for untracked files.
//!
//! ```text
//! a folder ── its entries in the index ──► each examined: deleted, changed, or uncertain until it is read
//!        └─── its other names, unless ignored ──► untracked files; folders are walked in turn
//! ```

use std::{
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use rustix::fs::{FileType, Stat};

use super::{
    folder::{Folder, Name, Stands},
    ignored::Rules,
    index::{Child, DEEPEST, Entry, Index, order},
};
use crate::leash::Leash;

/// Limit of a `.gitignore` file, in bytes.
const LONGEST_RULES: u64 = 64 << 10;
/// Limits of reported files and of queued folders, and of the untracked paths in bytes.
const MOST: usize = 100_000;
const MOST_BYTES: usize = 8 << 20;
/// Files per thread, so that starting it pays off, and the limit of threads, which mostly wait for disks.
const FILES_A_THREAD: usize = 2_000;
const MOST_THREADS: usize = 4;
const RULES: &[u8] = b".gitignore";

/// State of a tracked file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Now {
    Gone,
    /// It has changed. The mode is one of git's.
    Changed(u32),
    /// It may have changed; only its content tells. The mode is the same.
    Unsure,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    /// Tracked files by their positions in the index.
    pub(super) known: Vec<(usize, Now)>,
    pub(super) unknown: Vec<Vec<u8>>,
    bytes: usize,
}

/// A folder that waits for a thread.
struct Ahead {
    above: Arc<Folder>,
    /// Relative to the top, with a final slash; empty for the top itself.
    path: Vec<u8>,
    entries: Range<usize>,
    /// The patterns for this folder. `None` if untracked files are not searched.
    rules: Option<Arc<Rules>>,
    depth: usize,
}

struct Walk<'a> {
    index: &'a Index,
    leash: Leash,
    work: Mutex<Work>,
    changed: Condvar,
}

/// Queued folders, and the numbers of busy and waiting threads. The walk ends when no folder is queued and no thread
/// is busy, or after a failure.
#[derive(Default)]
struct Work {
    ahead: Vec<Ahead>,
    busy: usize,
    waiting: usize,
    failed: bool,
}

/// Guard of a folder that a thread is examining. If it is dropped without a result, the walk fails.
struct Turn<'w, 'a> {
    walk: &'w Walk<'a>,
    below: Option<Vec<Ahead>>,
}

/// Walks a work tree. With `rules`, it also searches untracked files. `None` leaves the operation to git.
pub(super) fn walk(
    top: &Arc<Folder>,
    index: &Index,
    rules: Option<Arc<Rules>>,
    leash: &Leash,
) -> Option<Found> {
    let first = Ahead { above: Arc::clone(top), path: Vec::new(), entries: 0..index.len(), rules, depth: 0 };
    let work = Mutex::new(Work { ahead: vec![first], ..Work::default() });
    let walk = Walk { index, leash: leash.clone(), work, changed: Condvar::new() };
    let more = (index.len() / FILES_A_THREAD).min(MOST_THREADS - 1);
    let mut found = std::thread::scope(|scope| {
        // If no thread can be started, fewer do the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, || walk.along()).ok();
        let others: Vec<_> = (0..more).filter_map(start).collect();
        let mut found = walk.along()?;
        for other in others {
            let other = other.join().ok()??;
            found.known.extend(other.known);
            found.unknown.extend(other.unknown);
        }
        Some(found)
    })?;
    found.known.sort_unstable_by_key(|(place, _)| *place);
    found.unknown.sort_unstable();
    Some(found)
}

impl<'a> Walk<'a> {
    /// Examines queued folders until there are none.
    fn along(&self) -> Option<Found> {
        let mut found = Found::default();
        while let Some((ahead, mut turn)) = self.next()? {
            turn.below = self.folder(ahead, &mut found);
        }
        Some(found)
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next folder. The inner `Option` is `None` at the end of the walk, the outer one after a failure.
    fn next(&self) -> Option<Option<(Ahead, Turn<'_, 'a>)>> {
        let mut work = self.work();
        loop {
            if work.failed {
                return None;
            }
            if let Some(next) = work.ahead.pop() {
                work.busy += 1;
                return Some(Some((next, Turn { walk: self, below: None })));
            }
            if work.busy == 0 {
                return Some(None);
            }
            work.waiting += 1;
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
            work.waiting -= 1;
        }
    }

    /// Examines one folder and returns those below it.
    fn folder(&self, here: Ahead, found: &mut Found) -> Option<Vec<Ahead>> {
        if self.leash.is_cut() || here.depth > DEEPEST {
            return None;
        }
        let folder = match here.path.strip_suffix(b"/") {
            None => here.above,
            Some(path) => {
                let name = path.rsplit(|byte| *byte == b'/').next()?;
                let Some(folder) = here.above.below(name)? else {
                    // The folder is missing or a link, so these files are deleted.
                    let whole = here.entries.filter(|place| self.index.entry(*place).stage() == 0);
                    found.known.extend(whole.map(|place| (place, Now::Gone)));
                    return found.fits().then(Vec::new);
                };
                Arc::new(folder)
            }
        };
        let children = self.index.children(here.entries, here.path.len())?;
        for child in children.iter().filter(|child| !child.is_folder) {
            let entry = self.index.entry(child.entries.start);
            // Files in conflict are only reported as such.
            if entry.stage() == 0
                && let Some(now) = self.look(&folder, &entry, child.name)?
            {
                found.known.push((child.entries.start, now));
            }
        }
        let mut below = Vec::new();
        let mut ahead = |path: Vec<u8>, entries: Range<usize>, rules| {
            let above = Arc::clone(&folder);
            below.push(Ahead { above, path, entries, rules, depth: here.depth + 1 });
        };
        let unknown = match here.rules {
            None => None,
            Some(rules) => Some(Unknown::of(&folder, &here.path, rules, here.depth == 0)?),
        };
        for child in children.iter().filter(|child| child.is_folder) {
            let path = joint(&here.path, child.name, true);
            let rules = unknown.as_ref().and_then(|unknown| unknown.rules_below(&path));
            ahead(path, child.entries.clone(), rules);
        }
        if let Some(unknown) = unknown {
            unknown.tell(&children, &here.path, found, ahead);
        }
        found.fits().then_some(below)
    }

    /// The state of a tracked file. The inner `Option` is `None` if its metadata are unchanged.
    fn look(&self, folder: &Folder, entry: &Entry<'_>, name: &[u8]) -> Option<Option<Now>> {
        let Stands::Something(stat) = folder.look(name)? else { return Some(Some(Now::Gone)) };
        let Some(mode) = mode(&stat)? else {
            // A folder replaced the file. Git treats it differently if it is a repository.
            let inside = folder.below(name)??;
            return matches!(inside.look(b".git")?, Stands::Nothing).then_some(Some(Now::Gone));
        };
        let sized = entry.size() != 0 || entry.id().is_empty_blob();
        Some(if mode != entry.mode() {
            Some(Now::Changed(mode))
        } else if entry.looks_like(&stat) && sized && !self.index.is_racy(entry) {
            None
        } else if entry.size() != 0 && entry.size() != u32::try_from(stat.st_size).ok()? {
            Some(Now::Changed(mode))
        } else {
            Some(Now::Unsure)
        })
    }
}

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        let mut work = self.walk.work();
        work.busy -= 1;
        match self.below.take() {
            Some(below) if work.ahead.len() + below.len() <= MOST => work.ahead.extend(below),
            _ => work.failed = true,
        }
        if work.waiting > 0 {
            self.walk.changed.notify_all();
        }
    }
}

/// A folder in which untracked files are searched.
struct Unknown {
    names: Vec<Name>,
    rules: Arc<Rules>,
}

impl Unknown {
    fn of(folder: &Folder, path: &[u8], above: Arc<Rules>, is_top: bool) -> Option<Self> {
        let mut names = folder.names()?;
        let before = names.len();
        names.retain(|name| *name.name != *b".git");
        // A nested repository.
        if names.len() < before && !is_top {
            return None;
        }
        let rules = if names.iter().any(|name| *name.name == *RULES) {
            let text = folder.small(RULES, LONGEST_RULES)??;
            Arc::new(Rules::parse(&text, path.len(), Some(above))?)
        } else {
            above
        };
        Some(Self { names, rules })
    }

    /// The patterns for a folder below; `None` if it is ignored with all of its untracked files.
    fn rules_below(&self, path: &[u8]) -> Option<Arc<Rules>> {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        (!self.rules.ignore(path, true)).then(|| Arc::clone(&self.rules))
    }

    fn tell(
        self,
        children: &[Child<'_>],
        folder: &[u8],
        found: &mut Found,
        mut ahead: impl FnMut(Vec<u8>, Range<usize>, Option<Arc<Rules>>),
    ) {
        for Name { name, is_folder } in &self.names {
            let key = (&**name, *is_folder);
            if children.binary_search_by(|child| order((child.name, child.is_folder), key)).is_ok() {
                continue;
            }
            let path = joint(folder, name, *is_folder);
            if *is_folder {
                if let Some(rules) = self.rules_below(&path) {
                    ahead(path, 0..0, Some(rules));
                }
            } else if !self.rules.ignore(&path, false) {
                found.bytes += path.len();
                found.unknown.push(path);
            }
        }
    }
}

impl Found {
    fn fits(&self) -> bool {
        self.known.len() + self.unknown.len() <= MOST && self.bytes <= MOST_BYTES
    }
}

/// The mode of a file as git records it. The inner `Option` is `None` for a folder; other types have none.
fn mode(stat: &Stat) -> Option<Option<u32>> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_mode & 0o100 != 0 => Some(Some(0o100_755)),
        FileType::RegularFile => Some(Some(0o100_644)),
        FileType::Symlink => Some(Some(0o120_000)),
        FileType::Directory => Some(None),
        _ => None,
    }
}

fn joint(folder: &[u8], name: &[u8], is_folder: bool) -> Vec<u8> {
    let slash: &[u8] = if is_folder { b"/" } else { b"" };
    [folder, name, slash].concat()
}
