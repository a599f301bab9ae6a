//! Compares work tree, index and commits.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use skep_api::git::{ChangeKind, ChangedPath, Diff, DiffFile, GitDiff, MAX_DIFF_BYTES};

use super::{
    ObjectId, Reader,
    attributes::Attributes,
    blob::hash_blob,
    content_check::without_unchanged,
    folder::{Folder, OpenedFile},
    index::{Entry, Index},
    inflate::MAX_OBJECT_BYTES,
    objects::ObjectKind,
    patch::{FilePatch, LineCounts, PatchSide},
    read,
    refs::Head,
    status::kind_of_change,
    tree_diff::{FileChange, FileVersion},
    worktree::{FileState, walk_work_tree},
};
use crate::{
    Place,
    git::{
        diff::{fit_answer, into_text},
        raw_diff::changed_path,
    },
    roots::read_up_to,
};

/// Limit of files in a diff.
const MAX_FILES: usize = 2_000;
/// Limit of work tree contents in memory, in bytes.
const MAX_CONTENT_BYTES: usize = 8 << 20;

pub(in crate::git) async fn diff(request: &GitDiff, place: &Place) -> Option<Diff> {
    // Git uses another algorithm for patches without context lines.
    if request.context == 0 {
        return None;
    }
    let (path, request) = (request.path.clone(), request.clone());
    read(place, path.as_ref(), move |reader| compute_diff(reader, &request)).await
}

/// A changed file. `content` is set if it comes from the work tree and is in no object.
struct ChangedFile {
    pair: FileChange,
    content: Option<Vec<u8>>,
}

pub(super) fn compute_diff(reader: &mut Reader<'_>, request: &GitDiff) -> Option<Diff> {
    reader.uses_default_comparison()?;
    let (top, index) = (reader.open_top_folder()?, reader.index()?);
    if index.conflicted().next().is_some() {
        return None;
    }
    let mut attributes = reader.attributes(&top, &index)?;
    let only = match &request.file {
        Some(file) => Some(literal_path(file)?),
        None => None,
    };
    let of_objects = |pair: FileChange| ChangedFile { pair, content: None };
    let mut differ: Vec<_> = match (request.staged, &request.from, &request.to) {
        (false, None, None) => unstaged_changes(reader, &top, &index, &mut attributes, only)?,
        (true, from, None) => {
            let tree = reader.resolve_tree(from.as_deref())?;
            reader.diff_index(tree, &index)?.into_iter().map(of_objects).collect()
        }
        (false, Some(from), Some(to)) => {
            let (from, to) = (reader.resolve_tree(Some(from))?, reader.resolve_tree(Some(to))?);
            reader.diff_trees(from?, to?)?.into_iter().map(of_objects).collect()
        }
        (false, Some(from), None) => {
            let tree = reader.resolve_tree(Some(from))?;
            let staged = reader.diff_index(tree, &index)?.into_iter().map(of_objects).collect();
            combine(staged, unstaged_changes(reader, &top, &index, &mut attributes, only)?)
        }
        (_, _, Some(_)) => return None,
    };
    differ.retain(|differs| is_below(&differs.pair.path, only));
    let is_new = |differs: &ChangedFile| differs.pair.old.is_none();
    let is_gone = |differs: &ChangedFile| differs.pair.new.is_none();
    // With added and deleted files git might detect renames.
    if differ.len() > MAX_FILES || differ.iter().any(is_new) && differ.iter().any(is_gone) {
        return None;
    }
    let (mut patch, mut files) = (Vec::new(), Vec::new());
    for differs in &differ {
        files.push(reader.write_file(differs, request.context as usize, &mut attributes, &mut patch)?);
    }
    Some(fit_answer(into_text(patch), files))
}

/// A relative path without `.` and `..`.
fn literal_path(file: &str) -> Option<&[u8]> {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    file.split('/').all(plain).then_some(file.as_bytes())
}

fn is_below(path: &[u8], only: Option<&[u8]>) -> bool {
    only.is_none_or(|only| path.strip_prefix(only).is_some_and(|rest| matches!(rest, [] | [b'/', ..])))
}

/// Combines the changes from A to B with those from B to C into those from A to C.
fn combine(first: Vec<ChangedFile>, then: Vec<ChangedFile>) -> Vec<ChangedFile> {
    let mut all: BTreeMap<_, _> =
        first.into_iter().map(|differs| (differs.pair.path.clone(), differs)).collect();
    for mut differs in then {
        if let Some(before) = all.remove(&differs.pair.path) {
            differs.pair.old = before.pair.old;
        }
        all.insert(differs.pair.path.clone(), differs);
    }
    all.into_values().filter(|differs| differs.pair.old != differs.pair.new).collect()
}

/// The changes of the work tree relative to the index.
fn unstaged_changes(
    reader: &Reader<'_>,
    top: &Arc<Folder>,
    index: &Index,
    attributes: &mut Attributes<'_>,
    only: Option<&[u8]>,
) -> Option<Vec<ChangedFile>> {
    let (mut differ, mut held) = (Vec::new(), 0);
    let mut known = walk_work_tree(top, index, None, &reader.cancellation)?.tracked;
    known.retain(|(place, _)| is_below(index.entry(*place).path, only));
    for (place, now) in without_unchanged(reader, top, index, known)? {
        reader.check_active()?;
        let entry = index.entry(place);
        let old = FileVersion { mode: entry.mode(), id: entry.id() };
        let mode = match now {
            FileState::Deleted => None,
            FileState::Changed(mode) => Some(mode),
            FileState::Uncertain => Some(old.mode),
        };
        let (new, content) = match mode {
            None => (None, None),
            Some(mode) => {
                let (id, content) = read_work_tree_file(top, &entry, mode, attributes)?;
                (Some(FileVersion { mode, id }), Some(content))
            }
        };
        if new == Some(old) {
            continue;
        }
        held += content.as_ref().map_or(0, Vec::len);
        differ.push(ChangedFile {
            pair: FileChange { path: entry.path.to_vec(), old: Some(old), new },
            content,
        });
        if held > MAX_CONTENT_BYTES || differ.len() > MAX_FILES {
            return None;
        }
    }
    Some(differ)
}

/// The content of a file in the work tree and its object id.
fn read_work_tree_file(
    top: &Folder,
    entry: &Entry<'_>,
    mode: u32,
    attributes: &mut Attributes<'_>,
) -> Option<(ObjectId, Vec<u8>)> {
    if mode == 0o120_000 {
        let link = top.read_link(entry.path)?;
        return Some((hash_blob(link.as_slice(), link.len() as u64)?.id, link));
    }
    let OpenedFile::File(file, size) = top.open_file(entry.path)? else { return None };
    let content = read_up_to(file, size, MAX_OBJECT_BYTES + 1)
        .ok()
        .filter(|content| content.len() as u64 <= MAX_OBJECT_BYTES)?;
    let hashed = hash_blob(content.as_slice(), content.len() as u64)?;
    let changed_on_its_way = hashed.has_carriage_returns && attributes.effects_for(entry.path)?.line_endings;
    (!changed_on_its_way).then_some((hashed.id, content))
}

impl Reader<'_> {
    /// The tree of a revision, or of the current commit. The inner `Option` is `None` before the first commit.
    fn resolve_tree(&mut self, revision: Option<&str>) -> Option<Option<ObjectId>> {
        let commit = match revision {
            Some(revision) => Some(self.resolve_revision(revision)?),
            None => match self.head()? {
                Head::Branch(_, head) => head,
                Head::Detached(head) => Some(head),
            },
        };
        match commit {
            Some(commit) => self.commit_tree(&commit).map(Some),
            None => Some(None),
        }
    }

    /// Describes a changed file and appends its patch.
    fn write_file(
        &mut self,
        differs: &ChangedFile,
        context: usize,
        attributes: &mut Attributes<'_>,
        patch: &mut Vec<u8>,
    ) -> Option<DiffFile> {
        self.check_active()?;
        let FileChange { path, old, new } = &differs.pair;
        let change = kind_of_change(old.map(|old| old.mode), new.map(|new| new.mode));
        if change == ChangeKind::Typechange || attributes.effects_for(path)?.comparison {
            return None;
        }
        // If only the mode differs, the old content also decides whether the file is binary.
        let is_other = old.map(|old| old.id) != new.map(|new| new.id);
        let old_content = self.side_content(*old, None)?;
        let new_content = self.side_content(new.filter(|_| is_other), differs.content.as_deref())?;
        let nothing = self.objects.abbreviate(&ObjectId::zero())?;
        let (old, new) = (self.patch_side(*old, &old_content)?, self.patch_side(*new, &new_content)?);
        let counts = FilePatch { path, old, new, zero_id: &nothing }.write(context, patch)?;
        if patch.len() > MAX_DIFF_BYTES {
            return None;
        }
        let ChangedPath { path, path_encoding, from, .. } = changed_path(path, change, None);
        let LineCounts { additions, deletions, binary } = counts;
        Some(DiffFile { path, path_encoding, change, from, additions, deletions, binary })
    }

    /// The content of one side; empty if the file does not exist there.
    fn side_content<'c>(
        &mut self,
        side: Option<FileVersion>,
        read: Option<&'c [u8]>,
    ) -> Option<Cow<'c, [u8]>> {
        match (side, read) {
            (None, _) => Some(Cow::Borrowed(&[])),
            (Some(_), Some(read)) => Some(Cow::Borrowed(read)),
            (Some(side), None) => match self.objects.read(&side.id)? {
                (ObjectKind::Blob, content) => Some(Cow::Owned(content)),
                _ => None,
            },
        }
    }

    fn patch_side<'c>(
        &mut self,
        side: Option<FileVersion>,
        content: &'c [u8],
    ) -> Option<Option<PatchSide<'c>>> {
        let Some(side) = side else { return Some(None) };
        Some(Some(PatchSide { side, short_id: self.objects.abbreviate(&side.id)?, content }))
    }
}
