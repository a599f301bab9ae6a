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
    folder::{Folder, FolderEntry, PathState},
    ignore_rules::IgnoreRules,
    index::{Child, Entry, Index, MAX_DEPTH, compare_names},
};
use crate::cancellation::Cancellation;

/// Limit of a `.gitignore` file, in bytes.
const MAX_RULES_BYTES: u64 = 64 << 10;
/// Limits of reported files and of queued folders, and of the untracked paths in bytes.
const MAX_PATHS: usize = 100_000;
const MAX_UNTRACKED_BYTES: usize = 8 << 20;
/// Files per thread, so that starting it pays off, and the limit of threads, which mostly wait for disks.
const FILES_A_THREAD: usize = 2_000;
const MAX_THREADS: usize = 4;
const RULES_FILE: &[u8] = b".gitignore";

/// State of a tracked file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    Deleted,
    /// It has changed. The value is its current mode, as git encodes it.
    Changed(u32),
    /// It may have changed, which only its content shows. The mode is the same.
    Uncertain,
}

#[derive(Debug, Default)]
pub(super) struct WalkResult {
    /// Tracked files by their positions in the index.
    pub(super) tracked: Vec<(usize, FileState)>,
    pub(super) untracked: Vec<Vec<u8>>,
    untracked_bytes: usize,
}

/// A folder that waits for a thread.
struct QueuedFolder {
    parent: Arc<Folder>,
    /// Relative to the top, with a final slash; empty for the top itself.
    path: Vec<u8>,
    entries: Range<usize>,
    /// The patterns for this folder. `None` if untracked files are not searched.
    rules: Option<Arc<IgnoreRules>>,
    depth: usize,
}

struct Walk<'a> {
    index: &'a Index,
    cancellation: Cancellation,
    queue: Mutex<WorkQueue>,
    changed: Condvar,
}

/// Queued folders, and the numbers of busy and waiting threads. The walk ends when no folder is queued and no thread
/// is busy, or after a failure.
#[derive(Default)]
struct WorkQueue {
    folders: Vec<QueuedFolder>,
    busy: usize,
    waiting: usize,
    failed: bool,
}

/// Guard of a folder that a thread is examining. If it is dropped without a result, the walk fails.
struct FolderGuard<'w, 'a> {
    walk: &'w Walk<'a>,
    children: Option<Vec<QueuedFolder>>,
}

/// Walks a work tree. With `rules`, it also searches untracked files. `None` leaves the operation to git.
pub(super) fn walk_work_tree(
    top: &Arc<Folder>,
    index: &Index,
    rules: Option<Arc<IgnoreRules>>,
    cancellation: &Cancellation,
) -> Option<WalkResult> {
    let first =
        QueuedFolder { parent: Arc::clone(top), path: Vec::new(), entries: 0..index.len(), rules, depth: 0 };
    let work = Mutex::new(WorkQueue { folders: vec![first], ..WorkQueue::default() });
    let walk = Walk { index, cancellation: cancellation.clone(), queue: work, changed: Condvar::new() };
    let more = (index.len() / FILES_A_THREAD).min(MAX_THREADS - 1);
    let mut found = std::thread::scope(|scope| {
        // If no thread can be started, fewer do the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, || walk.run_worker()).ok();
        let others: Vec<_> = (0..more).filter_map(start).collect();
        let mut found = walk.run_worker()?;
        for other in others {
            let other = other.join().ok()??;
            found.tracked.extend(other.tracked);
            found.untracked.extend(other.untracked);
        }
        Some(found)
    })?;
    found.tracked.sort_unstable_by_key(|(place, _)| *place);
    found.untracked.sort_unstable();
    Some(found)
}

impl<'a> Walk<'a> {
    /// Examines queued folders until there are none.
    fn run_worker(&self) -> Option<WalkResult> {
        let mut found = WalkResult::default();
        while let Some((ahead, mut turn)) = self.next_folder()? {
            turn.children = self.examine_folder(ahead, &mut found);
        }
        Some(found)
    }

    fn lock_queue(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next folder. The inner `Option` is `None` at the end of the walk, the outer one after a failure.
    fn next_folder(&self) -> Option<Option<(QueuedFolder, FolderGuard<'_, 'a>)>> {
        let mut work = self.lock_queue();
        loop {
            if work.failed {
                return None;
            }
            if let Some(next) = work.folders.pop() {
                work.busy += 1;
                return Some(Some((next, FolderGuard { walk: self, children: None })));
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
    fn examine_folder(&self, here: QueuedFolder, found: &mut WalkResult) -> Option<Vec<QueuedFolder>> {
        if self.cancellation.is_cancelled() || here.depth > MAX_DEPTH {
            return None;
        }
        let folder = match here.path.strip_suffix(b"/") {
            None => here.parent,
            Some(path) => {
                let name = path.rsplit(|byte| *byte == b'/').next()?;
                let Some(folder) = here.parent.open_folder(name)? else {
                    // The folder is missing or a link, so these files are deleted.
                    let whole = here.entries.filter(|place| self.index.entry(*place).stage() == 0);
                    found.tracked.extend(whole.map(|place| (place, FileState::Deleted)));
                    return found.is_within_limits().then(Vec::new);
                };
                Arc::new(folder)
            }
        };
        let children = self.index.children(here.entries, here.path.len())?;
        for child in children.iter().filter(|child| !child.is_folder) {
            let entry = self.index.entry(child.entries.start);
            // Files in conflict are only reported as such.
            if entry.stage() == 0
                && let Some(now) = self.examine_file(&folder, &entry, child.name)?
            {
                found.tracked.push((child.entries.start, now));
            }
        }
        let mut below = Vec::new();
        let mut ahead = |path: Vec<u8>, entries: Range<usize>, rules| {
            let above = Arc::clone(&folder);
            below.push(QueuedFolder { parent: above, path, entries, rules, depth: here.depth + 1 });
        };
        let unknown = match here.rules {
            None => None,
            Some(rules) => Some(UntrackedSearch::of(&folder, &here.path, rules, here.depth == 0)?),
        };
        for child in children.iter().filter(|child| child.is_folder) {
            let path = join_path(&here.path, child.name, true);
            let rules = unknown.as_ref().and_then(|unknown| unknown.rules_below(&path));
            ahead(path, child.entries.clone(), rules);
        }
        if let Some(unknown) = unknown {
            unknown.collect(&children, &here.path, found, ahead);
        }
        found.is_within_limits().then_some(below)
    }

    /// The state of a tracked file. The inner `Option` is `None` if its metadata are unchanged.
    fn examine_file(&self, folder: &Folder, entry: &Entry<'_>, name: &[u8]) -> Option<Option<FileState>> {
        let PathState::Present(stat) = folder.stat(name)? else { return Some(Some(FileState::Deleted)) };
        let Some(mode) = git_mode(&stat)? else {
            // A folder replaced the file. Git treats it differently if it is a repository.
            let inside = folder.open_folder(name)??;
            return matches!(inside.stat(b".git")?, PathState::Missing).then_some(Some(FileState::Deleted));
        };
        let sized = entry.size() != 0 || entry.id().is_empty_blob();
        Some(if mode != entry.mode() {
            Some(FileState::Changed(mode))
        } else if entry.matches_metadata(&stat) && sized && !self.index.is_racy(entry) {
            None
        } else if entry.size() != 0 && entry.size() != u32::try_from(stat.st_size).ok()? {
            Some(FileState::Changed(mode))
        } else {
            Some(FileState::Uncertain)
        })
    }
}

impl Drop for FolderGuard<'_, '_> {
    fn drop(&mut self) {
        let mut work = self.walk.lock_queue();
        work.busy -= 1;
        match self.children.take() {
            Some(below) if work.folders.len() + below.len() <= MAX_PATHS => work.folders.extend(below),
            _ => work.failed = true,
        }
        if work.waiting > 0 {
            self.walk.changed.notify_all();
        }
    }
}

/// A folder in which untracked files are searched.
struct UntrackedSearch {
    names: Vec<FolderEntry>,
    rules: Arc<IgnoreRules>,
}

impl UntrackedSearch {
    fn of(folder: &Folder, path: &[u8], above: Arc<IgnoreRules>, is_top: bool) -> Option<Self> {
        let mut names = folder.entries()?;
        let before = names.len();
        names.retain(|name| *name.name != *b".git");
        // A nested repository.
        if names.len() < before && !is_top {
            return None;
        }
        let rules = if names.iter().any(|name| *name.name == *RULES_FILE) {
            let text = folder.read_small(RULES_FILE, MAX_RULES_BYTES)??;
            Arc::new(IgnoreRules::parse(&text, path.len(), Some(above))?)
        } else {
            above
        };
        Some(Self { names, rules })
    }

    /// The patterns for a folder below; `None` if it is ignored with all of its untracked files.
    fn rules_below(&self, path: &[u8]) -> Option<Arc<IgnoreRules>> {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        (!self.rules.is_ignored(path, true)).then(|| Arc::clone(&self.rules))
    }

    fn collect(
        self,
        children: &[Child<'_>],
        folder: &[u8],
        found: &mut WalkResult,
        mut ahead: impl FnMut(Vec<u8>, Range<usize>, Option<Arc<IgnoreRules>>),
    ) {
        for FolderEntry { name, is_folder } in &self.names {
            let key = (&**name, *is_folder);
            if children.binary_search_by(|child| compare_names((child.name, child.is_folder), key)).is_ok() {
                continue;
            }
            let path = join_path(folder, name, *is_folder);
            if *is_folder {
                if let Some(rules) = self.rules_below(&path) {
                    ahead(path, 0..0, Some(rules));
                }
            } else if !self.rules.is_ignored(&path, false) {
                found.untracked_bytes += path.len();
                found.untracked.push(path);
            }
        }
    }
}

impl WalkResult {
    fn is_within_limits(&self) -> bool {
        self.tracked.len() + self.untracked.len() <= MAX_PATHS && self.untracked_bytes <= MAX_UNTRACKED_BYTES
    }
}

/// The mode of a file as git records it. The inner `Option` is `None` for a folder; other types have none.
fn git_mode(stat: &Stat) -> Option<Option<u32>> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_mode & 0o100 != 0 => Some(Some(0o100_755)),
        FileType::RegularFile => Some(Some(0o100_644)),
        FileType::Symlink => Some(Some(0o120_000)),
        FileType::Directory => Some(None),
        _ => None,
    }
}

fn join_path(folder: &[u8], name: &[u8], is_folder: bool) -> Vec<u8> {
    let slash: &[u8] = if is_folder { b"/" } else { b"" };
    [folder, name, slash].concat()
}
