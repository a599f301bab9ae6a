//! Compares two trees, or a tree and the index.

use std::{cmp::Ordering, ops::Range};

use super::{
    ObjectId, Reader,
    cache_tree::CacheTree,
    index::{Index, MAX_DEPTH, compare_names},
    objects::ObjectKind,
};

const MAX_CHANGES: usize = 20_000;
const MAX_NAMES: usize = 300_000;

/// Mode and object id of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    pub(super) mode: u32,
    pub(super) id: ObjectId,
}

/// A changed file. At least one side exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileChange {
    pub(super) path: Vec<u8>,
    pub(super) old: Option<FileVersion>,
    pub(super) new: Option<FileVersion>,
}

/// An entry of a tree.
#[derive(Debug, Clone)]
struct TreeEntry {
    name: Vec<u8>,
    is_folder: bool,
    side: FileVersion,
}

/// The newer state of a folder.
enum NewerState<'i> {
    /// A tree; `None` for a missing folder.
    Tree(Option<ObjectId>),
    /// Entries of an index, and the cache tree of the folder.
    Index(&'i Index, Range<usize>, Option<&'i CacheTree>),
}

/// An entry on the newer side; a file in conflict is `File(None)`.
enum NewerEntry<'i> {
    File(Option<FileVersion>),
    Folder(NewerState<'i>),
}

struct Comparison<'r, 'a> {
    reader: &'r mut Reader<'a>,
    changes: Vec<FileChange>,
    names: usize,
}

impl<'a> Reader<'a> {
    /// The changes of the index relative to a tree, by path. Files in conflict are left out.
    pub(super) fn diff_index(&mut self, tree: Option<ObjectId>, index: &Index) -> Option<Vec<FileChange>> {
        self.compare(tree, NewerState::Index(index, 0..index.len(), index.cache_tree()))
    }

    /// The changes of a tree relative to an older one, by path.
    pub(super) fn diff_trees(&mut self, older: ObjectId, newer: ObjectId) -> Option<Vec<FileChange>> {
        self.compare(Some(older), NewerState::Tree(Some(newer)))
    }

    fn compare(&mut self, older: Option<ObjectId>, newer: NewerState<'_>) -> Option<Vec<FileChange>> {
        let mut comparison = Comparison { reader: self, changes: Vec::new(), names: 0 };
        comparison.compare_folder(&mut Vec::new(), older, newer, 0)?;
        let mut pairs = comparison.changes;
        pairs.sort_by(|one, other| one.path.cmp(&other.path));
        Some(pairs)
    }

    /// The tree of a commit.
    pub(super) fn commit_tree(&mut self, commit: &ObjectId) -> Option<ObjectId> {
        let content = self.objects.read_commit(commit)?;
        ObjectId::parse(content.strip_prefix(b"tree ")?.get(..40)?)
    }
}

impl Comparison<'_, '_> {
    fn compare_folder(
        &mut self,
        path: &mut Vec<u8>,
        older: Option<ObjectId>,
        newer: NewerState<'_>,
        depth: usize,
    ) -> Option<()> {
        self.reader.check_active()?;
        if depth > MAX_DEPTH {
            return None;
        }
        let old = self.read_tree(older)?;
        let new = self.newer_entries(newer, path.len())?;
        let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
        loop {
            let which = match (old.peek(), new.peek()) {
                (None, None) => return Some(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some((name, stands))) => compare_names(
                    (one.name.as_slice(), one.is_folder),
                    (name.as_slice(), matches!(stands, NewerEntry::Folder(_))),
                ),
            };
            let older = if which.is_le() { old.next() } else { None };
            let newer = if which.is_ge() { new.next() } else { None };
            let name = older.as_ref().map(|name| &name.name).or(newer.as_ref().map(|(name, _)| name))?;
            let length = path.len();
            path.extend_from_slice(name);
            self.compare_name(path, older.as_ref(), newer.map(|(_, stands)| stands), depth)?;
            path.truncate(length);
        }
    }

    /// Compares one name. If it exists on both sides, both are files or both are folders.
    fn compare_name(
        &mut self,
        path: &mut Vec<u8>,
        older: Option<&TreeEntry>,
        newer: Option<NewerEntry<'_>>,
        depth: usize,
    ) -> Option<()> {
        let old = older.map(|older| older.side);
        match newer {
            Some(NewerEntry::File(None)) => return Some(()),
            Some(NewerEntry::File(new)) if old == new => return Some(()),
            Some(NewerEntry::File(new)) => self.changes.push(FileChange { path: path.clone(), old, new }),
            None if older.is_some_and(|older| !older.is_folder) => {
                self.changes.push(FileChange { path: path.clone(), old, new: None });
            }
            folder => {
                let newer = match folder {
                    Some(NewerEntry::Folder(newer)) => newer,
                    _ => NewerState::Tree(None),
                };
                let older = old.map(|old| old.id);
                if newer.is_tree(older) {
                    return Some(());
                }
                path.push(b'/');
                self.compare_folder(path, older, newer, depth + 1)?;
            }
        }
        (self.changes.len() <= MAX_CHANGES).then_some(())
    }

    /// The entries of a tree, in order.
    fn read_tree(&mut self, tree: Option<ObjectId>) -> Option<Vec<TreeEntry>> {
        let Some(tree) = tree else { return Some(Vec::new()) };
        let (ObjectKind::Tree, content) = self.reader.objects.read(&tree)? else { return None };
        let names = parse_tree(&content)?;
        self.names += names.len();
        (self.names <= MAX_NAMES).then_some(names)
    }

    fn newer_entries<'i>(
        &mut self,
        newer: NewerState<'i>,
        folder: usize,
    ) -> Option<Vec<(Vec<u8>, NewerEntry<'i>)>> {
        let (index, entries, trees) = match newer {
            NewerState::Index(index, entries, trees) => (index, entries, trees),
            NewerState::Tree(tree) => {
                let stands = |name: TreeEntry| match name.is_folder {
                    true => (name.name, NewerEntry::Folder(NewerState::Tree(Some(name.side.id)))),
                    false => (name.name, NewerEntry::File(Some(name.side))),
                };
                return Some(self.read_tree(tree)?.into_iter().map(stands).collect());
            }
        };
        let children = index.children(entries, folder)?.into_iter().map(|child| {
            let stands = if child.is_folder {
                let below = trees.and_then(|trees| trees.child(child.name));
                NewerEntry::Folder(NewerState::Index(index, child.entries, below))
            } else {
                let entry = index.entry(child.entries.start);
                let side = FileVersion { mode: entry.mode(), id: entry.id() };
                NewerEntry::File((entry.stage() == 0).then_some(side))
            };
            (child.name.to_vec(), stands)
        });
        Some(children.collect())
    }
}

impl NewerState<'_> {
    /// Whether it is known to be equal to this tree.
    fn is_tree(&self, tree: Option<ObjectId>) -> bool {
        match self {
            Self::Tree(own) => *own == tree,
            Self::Index(_, entries, trees) => {
                let whole = trees.and_then(CacheTree::tree);
                whole.is_some_and(|(covered, own)| covered == entries.len() && Some(own) == tree)
            }
        }
    }
}

/// Parses a tree. `None` for other formats than git writes, and for submodules.
fn parse_tree(mut rest: &[u8]) -> Option<Vec<TreeEntry>> {
    let mut names: Vec<TreeEntry> = Vec::new();
    while !rest.is_empty() {
        let blank = rest.iter().position(|byte| *byte == b' ')?;
        let (mode, is_folder) = match &rest[..blank] {
            b"100644" => (0o100_644, false),
            b"100755" => (0o100_755, false),
            b"120000" => (0o120_000, false),
            b"40000" => (0o40_000, true),
            _ => return None,
        };
        let end = blank + 1 + rest[blank + 1..].iter().position(|byte| *byte == 0)?;
        let name = rest[blank + 1..end].to_vec();
        let (id, behind) = rest[end + 1..].split_first_chunk::<20>()?;
        rest = behind;
        let last = names.last().map(|last| (last.name.as_slice(), last.is_folder));
        let in_order = last.is_none_or(|last| compare_names(last, (name.as_slice(), is_folder)).is_lt());
        if name.is_empty() || name.contains(&b'/') || !in_order {
            return None;
        }
        names.push(TreeEntry { name, is_folder, side: FileVersion { mode, id: ObjectId::from_bytes(*id) } });
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree(names: &[(&str, &str)]) -> Vec<u8> {
        names
            .iter()
            .flat_map(|(mode, name)| [mode.as_bytes(), b" ", name.as_bytes(), b"\0", &[7; 20]].concat())
            .collect()
    }

    #[test]
    fn what_git_writes_is_read_and_nothing_else() {
        let read = parse_tree(&tree(&[("100644", "a"), ("40000", "a"), ("120000", "b")])).unwrap();
        assert_eq!(read.iter().map(|name| name.is_folder).collect::<Vec<_>>(), [false, true, false]);
        for wrong in [
            &[("100664", "a")][..],
            &[("160000", "a")],
            &[("100644", "")],
            &[("100644", "a/b")],
            &[("100644", "b"), ("100644", "a")],
            &[("100644", "a"), ("100644", "a")],
        ] {
            assert!(parse_tree(&tree(wrong)).is_none(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_tree_is_read_or_refused(
            content in prop::collection::vec(any::<u8>(), 0..80),
            place in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let _ = parse_tree(&content);
            let mut tree = tree(&[("100644", "a"), ("40000", "b")]);
            let place = place.index(tree.len());
            tree[place] = byte;
            let _ = parse_tree(&tree);
        }
    }
}
