//! What is read of a repository without a program: its history, its branches, and what is changed.
//!
//! ```text
//! as plain as git writes it? ── references ──► objects ──► commits, trees ──┐
//!        │                      index ──► work tree, less what is ignored ──┴──► the answer
//!        └── no: left to git, errors too
//! ```
//! This runs in the server's own process. So each file is opened by the kernel below the roots ([`crate::Roots`]), and is a
//! regular one; it is read and never mapped, since whoever cuts a mapped file short ends the process; and memory and time
//! have bounds. Whatever is not as git itself writes it, or means more than it says, is git's to read: a reader
//! returns `None`, and nobody has to know all that git knows.

mod attributes;
mod blob;
mod blocks;
mod branches;
mod commit;
mod diff;
mod folder;
mod id;
mod ignored;
mod index;
mod inflate;
mod lines;
mod log;
mod objects;
mod pack;
mod patch;
mod pattern;
mod refs;
mod staged;
mod status;
#[cfg(test)]
mod tests;
mod text;
mod trees;
mod unsure;
mod usual;
mod walk;
mod worktree;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
    time::Duration,
};

use skep_api::AbsolutePath;
use tokio::sync::Semaphore;

use super::{repository::Repository, settings::value};
use crate::{Error, Place, Roots, leash::Leash, roots::Last};

pub(super) use branches::branches;
pub(super) use diff::diff;
use id::Id;
pub(super) use log::log;
use objects::Objects;
pub(super) use status::status;
use walk::Links;

/// How long a reading may take. What takes longer is left to git, which has more time.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// What a reading may hold in memory of commits, in bytes.
const MOST_HELD: usize = 32 << 20;

/// Readings at once; each holds some memory.
static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(16)));

/// Reads one repository, for one answer.
struct Reader<'a> {
    roots: &'a Roots,
    repository: &'a Repository,
    objects: Objects<'a>,
    packed: Option<BTreeMap<String, Id>>,
    links: HashMap<Id, Links>,
    leash: Leash,
}

impl Reader<'_> {
    /// `None` once nobody waits any more, or for too long.
    fn go_on(&self) -> Option<()> {
        (!self.leash.is_cut()).then_some(())
    }
}

/// Reads a repository on a thread of its own. `None` leaves it to git.
async fn read<T: Send + 'static>(
    place: &Place,
    path: Option<&AbsolutePath>,
    work: impl FnOnce(&mut Reader<'_>) -> Option<T> + Send + 'static,
) -> Option<T> {
    // Where programs have a fence, the reading was tried before, without one.
    if place.has_fence() {
        return None;
    }
    let turn = Arc::clone(&TURNS).acquire_owned().await.ok()?;
    let (place, path) = (place.clone(), path.cloned());
    let (leash, _waiting) = Leash::of(TIME_LIMIT);
    let reading = tokio::task::spawn_blocking(move || {
        // The thread has the turn until it ends, also where the caller leaves before.
        let _turn = turn;
        let roots: Arc<Roots> = place.roots().ok()?;
        let repository = Repository::look(&place, path.as_ref())?;
        let objects = Objects::new(&roots, repository.common_dir.join("objects"));
        let (packed, links) = (None, HashMap::new());
        let mut reader = Reader { roots: &roots, repository: &repository, objects, packed, links, leash };
        reader.is_plain()?;
        work(&mut reader)
    });
    reading.await.ok()?
}

impl Reader<'_> {
    /// Whether nothing changes what objects and references mean.
    fn is_plain(&mut self) -> Option<()> {
        let own = &self.repository.own;
        let version = value(own, b"core.repositoryformatversion");
        let odd = |key: &[u8]| key.starts_with(b"extensions.") || key == b"core.warnambiguousrefs";
        if !matches!(version, None | Some(b"0" | b"1")) || own.iter().any(|own| odd(&own.key)) {
            return None;
        }
        let common = &self.repository.common_dir;
        for folder in ["objects", "refs"] {
            self.roots.find(&common.join(folder), Last::Follow).ok().filter(|found| found.is_directory())?;
        }
        for name in ["objects/info/alternates", "info/grafts", "shallow"] {
            match self.roots.find(&common.join(name), Last::Keep) {
                Err(Error::UnknownPath { .. }) => {}
                _ => return None,
            }
        }
        self.below("refs/replace")?.is_empty().then_some(())
    }
}
