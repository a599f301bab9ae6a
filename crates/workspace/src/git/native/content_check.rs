//! Compares the contents of files whose metadata do not show whether they changed, in several threads.
//!
//! Such files were written in the same second as the index; after a checkout there can be thousands.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    ObjectId, Reader,
    attributes::Attributes,
    blob::hash_blob,
    folder::{Folder, OpenedFile},
    index::{Entry, Index},
    worktree::FileState,
};

/// Limit of compared contents, in bytes. More would take too long and is left to git.
const MAX_READ_BYTES: u64 = 1 << 30;
/// Files per thread, so that starting it pays off, and the limit of threads.
const FILES_A_THREAD: usize = 200;
const MAX_THREADS: usize = 4;

/// Removes files with unchanged content from a list of positions in the index with their states. Files whose state is
/// still uncertain then have other contents.
pub(super) fn without_unchanged(
    reader: &Reader<'_>,
    top: &Folder,
    index: &Index,
    known: Vec<(usize, FileState)>,
) -> Option<Vec<(usize, FileState)>> {
    let uncertain = known.iter().filter(|(_, now)| *now == FileState::Uncertain).count();
    let threads = uncertain.div_ceil(FILES_A_THREAD).clamp(1, MAX_THREADS);
    let read = AtomicU64::new(0);
    let settle = |part: &[(usize, FileState)]| {
        let mut attributes = reader.attributes(top, index)?;
        let mut changed = Vec::new();
        for (place, now) in part {
            if *now == FileState::Uncertain {
                reader.check_active()?;
                let entry = index.entry(*place);
                let (id, size) = content_id(top, &entry, &mut attributes)?;
                if read.fetch_add(size, Ordering::Relaxed) + size > MAX_READ_BYTES {
                    return None;
                }
                if id == entry.id() {
                    continue;
                }
            }
            changed.push((*place, *now));
        }
        Some(changed)
    };
    let mut parts = known.chunks(known.len().div_ceil(threads).max(1));
    let Some(first) = parts.next() else { return Some(known) };
    std::thread::scope(|scope| {
        // If no thread can be started, this one does the work.
        let start = |part| {
            let started = std::thread::Builder::new().spawn_scoped(scope, move || settle(part));
            (part, started.ok())
        };
        let others: Vec<_> = parts.map(start).collect();
        let mut changed = settle(first)?;
        for (part, other) in others {
            changed.extend(match other {
                Some(other) => other.join().ok()??,
                None => settle(part)?,
            });
        }
        Some(changed)
    })
}

/// The object id and size of a file's current content. Its mode is that of the entry.
fn content_id(top: &Folder, entry: &Entry<'_>, attributes: &mut Attributes<'_>) -> Option<(ObjectId, u64)> {
    if entry.mode() == 0o120_000 {
        let link = top.read_link(entry.path)?;
        let size = link.len() as u64;
        return Some((hash_blob(link.as_slice(), size)?.id, size));
    }
    let effects = attributes.effects_for(entry.path)?;
    let OpenedFile::File(file, size) = top.open_file(entry.path)? else { return None };
    let size = u64::try_from(size).ok()?;
    let hashed = hash_blob(file, size)?;
    (!(hashed.has_carriage_returns && effects.line_endings)).then_some((hashed.id, size))
}
