//! Compares work tree, index and commits.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use skep_api::git::{ChangeKind, ChangedPath, Diff, DiffFile, GitDiff, LONGEST_DIFF};

use super::{
    Id, Reader,
    attributes::Attributes,
    blob::hash,
    folder::{Content, Folder},
    index::{Entry, Index},
    inflate::LARGEST,
    objects::Kind,
    patch::{Compared, Counts, File},
    read,
    refs::Head,
    staged::{Pair, Side},
    status::kind,
    unsure::settled,
    worktree::{Now, walk},
};
use crate::{
    Place,
    git::{
        changes::changed,
        diff::{fitting, text_of},
    },
    roots::read_up_to,
};

/// Limit of files in a diff.
const MOST_FILES: usize = 2_000;
/// Limit of work tree contents in memory, in bytes.
const MOST_CONTENT: usize = 8 << 20;

pub(in crate::git) async fn diff(request: &GitDiff, place: &Place) -> Option<Diff> {
    // Git uses another algorithm for patches without context lines.
    if request.context == 0 {
        return None;
    }
    let (path, request) = (request.path.clone(), request.clone());
    read(place, path.as_ref(), move |reader| answer(reader, &request)).await
}

/// A changed file. `content` is set if it comes from the work tree and is in no object.
struct Differs {
    pair: Pair,
    content: Option<Vec<u8>>,
}

fn answer(reader: &mut Reader<'_>, request: &GitDiff) -> Option<Diff> {
    reader.compares_as_usual()?;
    let (top, index) = (reader.top()?, reader.index()?);
    if index.conflicted().next().is_some() {
        return None;
    }
    let mut attributes = reader.attributes(&top, &index)?;
    let only = match &request.file {
        Some(file) => Some(plain_path(file)?),
        None => None,
    };
    let of_objects = |pair: Pair| Differs { pair, content: None };
    let mut differ: Vec<_> = match (request.staged, &request.from, &request.to) {
        (false, None, None) => in_work_tree(reader, &top, &index, &mut attributes, only)?,
        (true, from, None) => {
            let tree = reader.older(from.as_deref())?;
            reader.staged(tree, &index)?.into_iter().map(of_objects).collect()
        }
        (false, Some(from), Some(to)) => {
            let (from, to) = (reader.older(Some(from))?, reader.older(Some(to))?);
            reader.between(from?, to?)?.into_iter().map(of_objects).collect()
        }
        (false, Some(from), None) => {
            let tree = reader.older(Some(from))?;
            let staged = reader.staged(tree, &index)?.into_iter().map(of_objects).collect();
            joined(staged, in_work_tree(reader, &top, &index, &mut attributes, only)?)
        }
        (_, _, Some(_)) => return None,
    };
    differ.retain(|differs| is_below(&differs.pair.path, only));
    let is_new = |differs: &Differs| differs.pair.old.is_none();
    let is_gone = |differs: &Differs| differs.pair.new.is_none();
    // With added and deleted files git might detect renames.
    if differ.len() > MOST_FILES || differ.iter().any(is_new) && differ.iter().any(is_gone) {
        return None;
    }
    let (mut patch, mut files) = (Vec::new(), Vec::new());
    for differs in &differ {
        files.push(reader.told(differs, request.context as usize, &mut attributes, &mut patch)?);
    }
    Some(fitting(text_of(patch), files))
}

/// A relative path without `.` and `..`.
fn plain_path(file: &str) -> Option<&[u8]> {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    file.split('/').all(plain).then_some(file.as_bytes())
}

fn is_below(path: &[u8], only: Option<&[u8]>) -> bool {
    only.is_none_or(|only| path.strip_prefix(only).is_some_and(|rest| matches!(rest, [] | [b'/', ..])))
}

/// Combines the changes from A to B with those from B to C into those from A to C.
fn joined(first: Vec<Differs>, then: Vec<Differs>) -> Vec<Differs> {
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
fn in_work_tree(
    reader: &Reader<'_>,
    top: &Arc<Folder>,
    index: &Index,
    attributes: &mut Attributes<'_>,
    only: Option<&[u8]>,
) -> Option<Vec<Differs>> {
    let (mut differ, mut held) = (Vec::new(), 0);
    let mut known = walk(top, index, None, &reader.leash)?.known;
    known.retain(|(place, _)| is_below(index.entry(*place).path, only));
    for (place, now) in settled(reader, top, index, known)? {
        reader.go_on()?;
        let entry = index.entry(place);
        let old = Side { mode: entry.mode(), id: entry.id() };
        let mode = match now {
            Now::Gone => None,
            Now::Changed(mode) => Some(mode),
            Now::Unsure => Some(old.mode),
        };
        let (new, content) = match mode {
            None => (None, None),
            Some(mode) => {
                let (id, content) = content(top, &entry, mode, attributes)?;
                (Some(Side { mode, id }), Some(content))
            }
        };
        if new == Some(old) {
            continue;
        }
        held += content.as_ref().map_or(0, Vec::len);
        differ.push(Differs { pair: Pair { path: entry.path.to_vec(), old: Some(old), new }, content });
        if held > MOST_CONTENT || differ.len() > MOST_FILES {
            return None;
        }
    }
    Some(differ)
}

/// The content of a file in the work tree and its object id.
fn content(
    top: &Folder,
    entry: &Entry<'_>,
    mode: u32,
    attributes: &mut Attributes<'_>,
) -> Option<(Id, Vec<u8>)> {
    if mode == 0o120_000 {
        let link = top.link(entry.path)?;
        return Some((hash(link.as_slice(), link.len() as u64)?.id, link));
    }
    let Content::File(file, size) = top.file(entry.path)? else { return None };
    let content =
        read_up_to(file, size, LARGEST + 1).ok().filter(|content| content.len() as u64 <= LARGEST)?;
    let hashed = hash(content.as_slice(), content.len() as u64)?;
    let changed_on_its_way = hashed.has_returns && attributes.of(entry.path)?.of_lines;
    (!changed_on_its_way).then_some((hashed.id, content))
}

impl Reader<'_> {
    /// The tree of a revision, or of the current commit. The inner `Option` is `None` before the first commit.
    fn older(&mut self, revision: Option<&str>) -> Option<Option<Id>> {
        let commit = match revision {
            Some(revision) => Some(self.revision(revision)?),
            None => match self.head()? {
                Head::Branch(_, head) => head,
                Head::Detached(head) => Some(head),
            },
        };
        match commit {
            Some(commit) => self.tree(&commit).map(Some),
            None => Some(None),
        }
    }

    /// Describes a changed file and appends its patch.
    fn told(
        &mut self,
        differs: &Differs,
        context: usize,
        attributes: &mut Attributes<'_>,
        patch: &mut Vec<u8>,
    ) -> Option<DiffFile> {
        self.go_on()?;
        let Pair { path, old, new } = &differs.pair;
        let change = kind(old.map(|old| old.mode), new.map(|new| new.mode));
        if change == ChangeKind::Typechange || attributes.of(path)?.of_diff {
            return None;
        }
        // If only the mode differs, the old content also decides whether the file is binary.
        let is_other = old.map(|old| old.id) != new.map(|new| new.id);
        let old_content = self.content(*old, None)?;
        let new_content = self.content(new.filter(|_| is_other), differs.content.as_deref())?;
        let nothing = self.objects.short(&Id::none())?;
        let (old, new) = (self.side(*old, &old_content)?, self.side(*new, &new_content)?);
        let counts = Compared { path, old, new, nothing: &nothing }.write(context, patch)?;
        if patch.len() > LONGEST_DIFF {
            return None;
        }
        let ChangedPath { path, path_encoding, from, .. } = changed(path, change, None);
        let Counts { additions, deletions, binary } = counts;
        Some(DiffFile { path, path_encoding, change, from, additions, deletions, binary })
    }

    /// The content of one side; empty if the file does not exist there.
    fn content<'c>(&mut self, side: Option<Side>, read: Option<&'c [u8]>) -> Option<Cow<'c, [u8]>> {
        match (side, read) {
            (None, _) => Some(Cow::Borrowed(&[])),
            (Some(_), Some(read)) => Some(Cow::Borrowed(read)),
            (Some(side), None) => match self.objects.read(&side.id)? {
                (Kind::Blob, content) => Some(Cow::Owned(content)),
                _ => None,
            },
        }
    }

    fn side<'c>(&mut self, side: Option<Side>, content: &'c [u8]) -> Option<Option<File<'c>>> {
        let Some(side) = side else { return Some(None) };
        Some(Some(File { side, short: self.objects.short(&side.id)?, content }))
    }
}
