//! Compares two trees, or a tree and the index.

use std::{cmp::Ordering, ops::Range};

use super::{
    Id, Reader,
    index::{DEEPEST, Index, order},
    objects::Kind,
    trees::Trees,
};

const MOST: usize = 20_000;
const MOST_NAMES: usize = 300_000;

/// Mode and object id of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) mode: u32,
    pub(super) id: Id,
}

/// A changed file. At least one side exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) path: Vec<u8>,
    pub(super) old: Option<Side>,
    pub(super) new: Option<Side>,
}

/// An entry of a tree.
#[derive(Debug, Clone)]
struct Name {
    name: Vec<u8>,
    is_folder: bool,
    side: Side,
}

/// The newer state of a folder.
enum Newer<'i> {
    /// A tree; `None` for a missing folder.
    Tree(Option<Id>),
    /// Entries of an index, and the cache tree of the folder.
    Index(&'i Index, Range<usize>, Option<&'i Trees>),
}

/// An entry on the newer side; a file in conflict is `File(None)`.
enum Stands<'i> {
    File(Option<Side>),
    Folder(Newer<'i>),
}

struct Comparison<'r, 'a> {
    reader: &'r mut Reader<'a>,
    pairs: Vec<Pair>,
    names: usize,
}

impl<'a> Reader<'a> {
    /// The changes of the index relative to a tree, by path. Files in conflict are left out.
    pub(super) fn staged(&mut self, tree: Option<Id>, index: &Index) -> Option<Vec<Pair>> {
        self.compared(tree, Newer::Index(index, 0..index.len(), index.trees()))
    }

    /// The changes of a tree relative to an older one, by path.
    pub(super) fn between(&mut self, older: Id, newer: Id) -> Option<Vec<Pair>> {
        self.compared(Some(older), Newer::Tree(Some(newer)))
    }

    fn compared(&mut self, older: Option<Id>, newer: Newer<'_>) -> Option<Vec<Pair>> {
        let mut comparison = Comparison { reader: self, pairs: Vec::new(), names: 0 };
        comparison.folder(&mut Vec::new(), older, newer, 0)?;
        let mut pairs = comparison.pairs;
        pairs.sort_by(|one, other| one.path.cmp(&other.path));
        Some(pairs)
    }

    /// The tree of a commit.
    pub(super) fn tree(&mut self, commit: &Id) -> Option<Id> {
        let content = self.objects.commit(commit)?;
        Id::parse(content.strip_prefix(b"tree ")?.get(..40)?)
    }
}

impl Comparison<'_, '_> {
    fn folder(
        &mut self,
        path: &mut Vec<u8>,
        older: Option<Id>,
        newer: Newer<'_>,
        depth: usize,
    ) -> Option<()> {
        self.reader.go_on()?;
        if depth > DEEPEST {
            return None;
        }
        let old = self.names(older)?;
        let new = self.newer(newer, path.len())?;
        let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
        loop {
            let which = match (old.peek(), new.peek()) {
                (None, None) => return Some(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some((name, stands))) => order(
                    (one.name.as_slice(), one.is_folder),
                    (name.as_slice(), matches!(stands, Stands::Folder(_))),
                ),
            };
            let older = if which.is_le() { old.next() } else { None };
            let newer = if which.is_ge() { new.next() } else { None };
            let name = older.as_ref().map(|name| &name.name).or(newer.as_ref().map(|(name, _)| name))?;
            let length = path.len();
            path.extend_from_slice(name);
            self.pair(path, older.as_ref(), newer.map(|(_, stands)| stands), depth)?;
            path.truncate(length);
        }
    }

    /// Compares one name. If it exists on both sides, both are files or both are folders.
    fn pair(
        &mut self,
        path: &mut Vec<u8>,
        older: Option<&Name>,
        newer: Option<Stands<'_>>,
        depth: usize,
    ) -> Option<()> {
        let old = older.map(|older| older.side);
        match newer {
            Some(Stands::File(None)) => return Some(()),
            Some(Stands::File(new)) if old == new => return Some(()),
            Some(Stands::File(new)) => self.pairs.push(Pair { path: path.clone(), old, new }),
            None if older.is_some_and(|older| !older.is_folder) => {
                self.pairs.push(Pair { path: path.clone(), old, new: None });
            }
            folder => {
                let newer = match folder {
                    Some(Stands::Folder(newer)) => newer,
                    _ => Newer::Tree(None),
                };
                let older = old.map(|old| old.id);
                if newer.is(older) {
                    return Some(());
                }
                path.push(b'/');
                self.folder(path, older, newer, depth + 1)?;
            }
        }
        (self.pairs.len() <= MOST).then_some(())
    }

    /// The entries of a tree, in order.
    fn names(&mut self, tree: Option<Id>) -> Option<Vec<Name>> {
        let Some(tree) = tree else { return Some(Vec::new()) };
        let (Kind::Tree, content) = self.reader.objects.read(&tree)? else { return None };
        let names = names(&content)?;
        self.names += names.len();
        (self.names <= MOST_NAMES).then_some(names)
    }

    fn newer<'i>(&mut self, newer: Newer<'i>, folder: usize) -> Option<Vec<(Vec<u8>, Stands<'i>)>> {
        let (index, entries, trees) = match newer {
            Newer::Index(index, entries, trees) => (index, entries, trees),
            Newer::Tree(tree) => {
                let stands = |name: Name| match name.is_folder {
                    true => (name.name, Stands::Folder(Newer::Tree(Some(name.side.id)))),
                    false => (name.name, Stands::File(Some(name.side))),
                };
                return Some(self.names(tree)?.into_iter().map(stands).collect());
            }
        };
        let children = index.children(entries, folder)?.into_iter().map(|child| {
            let stands = if child.is_folder {
                let below = trees.and_then(|trees| trees.below(child.name));
                Stands::Folder(Newer::Index(index, child.entries, below))
            } else {
                let entry = index.entry(child.entries.start);
                let side = Side { mode: entry.mode(), id: entry.id() };
                Stands::File((entry.stage() == 0).then_some(side))
            };
            (child.name.to_vec(), stands)
        });
        Some(children.collect())
    }
}

impl Newer<'_> {
    /// Whether it is known to be equal to this tree.
    fn is(&self, tree: Option<Id>) -> bool {
        match self {
            Self::Tree(own) => *own == tree,
            Self::Index(_, entries, trees) => {
                let whole = trees.and_then(Trees::whole);
                whole.is_some_and(|(covered, own)| covered == entries.len() && Some(own) == tree)
            }
        }
    }
}

/// Parses a tree. `None` for other formats than git writes, and for submodules.
fn names(mut rest: &[u8]) -> Option<Vec<Name>> {
    let mut names: Vec<Name> = Vec::new();
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
        let in_order = last.is_none_or(|last| order(last, (name.as_slice(), is_folder)).is_lt());
        if name.is_empty() || name.contains(&b'/') || !in_order {
            return None;
        }
        names.push(Name { name, is_folder, side: Side { mode, id: Id::of(*id) } });
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
        let read = names(&tree(&[("100644", "a"), ("40000", "a"), ("120000", "b")])).unwrap();
        assert_eq!(read.iter().map(|name| name.is_folder).collect::<Vec<_>>(), [false, true, false]);
        for wrong in [
            &[("100664", "a")][..],
            &[("160000", "a")],
            &[("100644", "")],
            &[("100644", "a/b")],
            &[("100644", "b"), ("100644", "a")],
            &[("100644", "a"), ("100644", "a")],
        ] {
            assert!(names(&tree(wrong)).is_none(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_tree_is_read_or_refused(
            content in prop::collection::vec(any::<u8>(), 0..80),
            place in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let _ = names(&content);
            let mut tree = tree(&[("100644", "a"), ("40000", "b")]);
            let place = place.index(tree.len());
            tree[place] = byte;
            let _ = names(&tree);
        }
    }
}
