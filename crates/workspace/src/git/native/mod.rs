//! Reads repositories without starting git: history, branches, and changes of the work tree.
//!
//! ```text
//! in git's standard format? ── references ──► objects ──► commits, trees ──┐
//!        │                      index ──► work tree without ignored files ─┴──► the answer
//!        └── no: left to git, errors too
//! ```
//! This code runs in the server's own process. So every file is opened below the roots by the kernel
//! ([`crate::Roots`]) and must be a regular file; files are read and never memory-mapped, because truncating a mapped
//! file would end the process; and memory and time are limited. Readers return `None` for everything that is not in
//! the standard format or needs git's special rules, and the operation then runs git instead. So this code need not
//! implement all of git.

mod attributes;
mod blob;
mod block_cache;
mod branches;
mod cache_tree;
mod commit;
mod content_check;
mod default_compare;
mod diff;
mod folder;
mod history;
mod id;
mod ignore_rules;
mod index;
mod inflate;
mod line_diff;
mod log;
mod objects;
mod pack;
mod patch;
mod pattern;
mod refs;
mod small_file;
mod status;
#[cfg(test)]
mod tests;
mod tree_diff;
mod worktree;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
    time::Duration,
};

use skep_api::AbsolutePath;
use tokio::sync::Semaphore;

use super::{config::last_value, repository::Repository};
use crate::{Error, Place, Roots, cancellation::Cancellation, roots::FinalLink};

pub(super) use branches::branches;
pub(super) use diff::diff;
use history::CommitNode;
use id::ObjectId;
pub(super) use log::log;
use objects::Objects;
pub(super) use status::status;

/// Limit for one reading. Longer ones are left to git, which has a higher limit. Tests expect the reader's answer, and run without
/// optimisation beside others that take all processors.
const TIME_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 3_600 } else { 10 });
/// Limit of commit contents in memory for one reading, in bytes.
const MAX_HELD_BYTES: usize = 32 << 20;

/// Limits concurrent readings, since each holds memory.
static READ_PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(16)));

/// State of reading one repository for one answer.
struct Reader<'a> {
    roots: &'a Roots,
    repository: &'a Repository,
    objects: Objects<'a>,
    packed_refs: Option<BTreeMap<String, ObjectId>>,
    commit_nodes: HashMap<ObjectId, CommitNode>,
    cancellation: Cancellation,
}

impl Reader<'_> {
    /// `None` once the caller is gone or the time limit has passed.
    fn check_active(&self) -> Option<()> {
        (!self.cancellation.is_cancelled()).then_some(())
    }
}

/// Runs `work` on a repository in a blocking thread. `None` leaves the operation to git.
async fn read<T: Send + 'static>(
    place: &Place,
    path: Option<&AbsolutePath>,
    work: impl FnOnce(&mut Reader<'_>) -> Option<T> + Send + 'static,
) -> Option<T> {
    // In a fenced workspace the caller has tried this already, outside the fence.
    if place.has_fence() {
        return None;
    }
    let permit = Arc::clone(&READ_PERMITS).acquire_owned().await.ok()?;
    let (place, path) = (place.clone(), path.cloned());
    let (cancellation, _waiting) = Cancellation::with_time_limit(TIME_LIMIT);
    let reading = tokio::task::spawn_blocking(move || {
        // The thread holds the permit until it ends, even if the caller is gone.
        let _permit = permit;
        let roots: Arc<Roots> = place.roots().ok()?;
        let repository = Repository::find_without_git(&place, path.as_ref())?;
        let objects = Objects::new(&roots, repository.common_dir.join("objects"));
        let (packed, links) = (None, HashMap::new());
        let mut reader = Reader {
            roots: &roots,
            repository: &repository,
            objects,
            packed_refs: packed,
            commit_nodes: links,
            cancellation,
        };
        reader.has_standard_layout()?;
        work(&mut reader)
    });
    reading.await.ok()?
}

impl Reader<'_> {
    /// Succeeds if no config and no file changes the meaning of objects and references.
    fn has_standard_layout(&mut self) -> Option<()> {
        let own = &self.repository.config;
        let version = last_value(own, b"core.repositoryformatversion");
        let odd = |key: &[u8]| key.starts_with(b"extensions.") || key == b"core.warnambiguousrefs";
        if !matches!(version, None | Some(b"0" | b"1")) || own.iter().any(|own| odd(&own.key)) {
            return None;
        }
        let common = &self.repository.common_dir;
        for folder in ["objects", "refs"] {
            self.roots
                .find(&common.join(folder), FinalLink::Follow)
                .ok()
                .filter(|found| found.is_directory())?;
        }
        for name in ["objects/info/alternates", "info/grafts", "shallow"] {
            match self.roots.find(&common.join(name), FinalLink::NoFollow) {
                Err(Error::UnknownPath { .. }) => {}
                _ => return None,
            }
        }
        self.refs_below("refs/replace")?.is_empty().then_some(())
    }
}
