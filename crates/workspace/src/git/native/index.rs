//! The index (gitformat-index(5)): the tracked files and their metadata when git last read them.

use std::{cmp::Ordering, ops::Range};

use rustix::fs::{FileType, Stat};

use super::{ObjectId, Reader, cache_tree::CacheTree};
use crate::{Error, roots::FinalLink};

/// Limit of the index, in bytes: about 300,000 files.
const MAX_BYTES: u64 = 24 << 20;
/// Length of signature, version and number of entries, in bytes.
const HEADER_LENGTH: usize = 12;
/// Length of an entry before its path, in bytes.
const ENTRY_HEADER_LENGTH: usize = 62;
/// Limit of nested folders.
pub(super) const MAX_DEPTH: usize = 64;

/// A parsed index, ordered by path.
#[derive(Debug, Default)]
pub(super) struct Index {
    bytes: Vec<u8>,
    /// Offset of each entry, and length of its path.
    entries: Vec<(u32, u32)>,
    cache_tree: Option<CacheTree>,
    /// Modification time in seconds. A file of the same second may have changed after git examined it.
    written_seconds: i64,
}

/// An entry for a tracked file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    head: &'a [u8],
    pub(super) path: &'a [u8],
}

/// A direct child of a folder, and the entries that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Child<'a> {
    pub(super) name: &'a [u8],
    pub(super) is_folder: bool,
    pub(super) entries: Range<usize>,
}

impl Reader<'_> {
    /// Reads the index; empty if the file does not exist.
    pub(super) fn index(&self) -> Option<Index> {
        let found = match self.roots.find(&self.repository.git_dir.join("index"), FinalLink::NoFollow) {
            Err(Error::UnknownPath { .. }) => return Some(Index::default()),
            found => found.ok().filter(|found| found.kind() == FileType::RegularFile)?,
        };
        Index::parse(found.content(MAX_BYTES + 1).ok()?, found.stat().st_mtime)
    }
}

impl Index {
    /// `None` for other versions than 2, for wrong order, and for features that need git: split indexes, sparse
    /// folders, flags that exclude entries from comparison.
    pub(super) fn parse(bytes: Vec<u8>, written: i64) -> Option<Self> {
        let end = bytes.len().checked_sub(20).filter(|_| bytes.len() as u64 <= MAX_BYTES)?;
        if bytes.get(..8)? != b"DIRC\0\0\0\x02" {
            return None;
        }
        let count = usize::try_from(read_u32(&bytes, 8)?).ok()?;
        // An entry has at least 64 bytes; this limits the allocation for a wrong count.
        let mut entries = Vec::with_capacity(count.min(bytes.len() / 64));
        let mut at = HEADER_LENGTH;
        let mut last: Option<Entry<'_>> = None;
        for _ in 0..count {
            let entry = Entry::parse(bytes.get(at..end)?)?;
            if last.is_some_and(|last| !last.precedes(&entry)) {
                return None;
            }
            entries.push((u32::try_from(at).ok()?, u32::try_from(entry.path.len()).ok()?));
            // Entries are padded with 1 to 8 zero bytes to a multiple of 8.
            at += (ENTRY_HEADER_LENGTH + entry.path.len() + 8) & !7;
            last = Some(entry);
        }
        let trees = parse_extensions(bytes.get(at..end)?)?;
        Some(Self { bytes, entries, cache_tree: trees, written_seconds: written })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        let (begin, length) = self.entries[at];
        let begin = begin as usize;
        let path = begin + ENTRY_HEADER_LENGTH;
        Entry { head: &self.bytes[begin..path], path: &self.bytes[path..path + length as usize] }
    }

    pub(super) fn cache_tree(&self) -> Option<&CacheTree> {
        self.cache_tree.as_ref()
    }

    /// The entry of a path without conflicts.
    pub(super) fn find(&self, path: &[u8]) -> Option<Entry<'_>> {
        let at = self.partition_point(0..self.len(), |entry| entry.path >= path);
        (at < self.len()).then(|| self.entry(at)).filter(|entry| entry.path == path && entry.stage() == 0)
    }

    pub(super) fn conflicted(&self) -> impl Iterator<Item = &[u8]> {
        let sides = (0..self.len()).filter(|at| self.entry(*at).stage() > 0);
        let first = sides.filter(|at| *at == 0 || self.entry(at - 1).path != self.entry(*at).path);
        first.map(|at| self.entry(at).path)
    }

    /// The direct children of a folder. `entries` are those below it, `folder` is the length of its path with the
    /// final slash.
    pub(super) fn children(&self, entries: Range<usize>, folder: usize) -> Option<Vec<Child<'_>>> {
        let mut children = Vec::new();
        let mut at = entries.start;
        while at < entries.end {
            let path = self.entry(at).path;
            let rest = path.get(folder..)?;
            let slash = rest.iter().position(|byte| *byte == b'/');
            let end = match slash {
                Some(slash) => {
                    let below = &path[..=folder + slash];
                    self.partition_point(at..entries.end, |entry| !entry.path.starts_with(below))
                }
                None => self.partition_point(at..entries.end, |entry| entry.path != path),
            };
            let name = &rest[..slash.unwrap_or(rest.len())];
            children.push(Child { name, is_folder: slash.is_some(), entries: at..end });
            at = end;
        }
        Some(children)
    }

    /// The partition point: the first entry for which a monotonic predicate holds.
    fn partition_point(&self, entries: Range<usize>, holds: impl Fn(Entry<'_>) -> bool) -> usize {
        // Fast path: most folders are small, and most names cover one entry.
        let near = entries.clone().take(4).position(|at| holds(self.entry(at)));
        if let Some(near) = near {
            return entries.start + near;
        }
        let (mut low, mut high) = (entries.start, entries.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(self.entry(middle)) { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// Whether a file may have changed after git examined it, although its metadata match ("racy" in git).
    pub(super) fn is_racy(&self, entry: &Entry<'_>) -> bool {
        self.written_seconds as u32 != 0 && self.written_seconds as u32 <= entry.modified_seconds()
    }
}

/// The order of names in a tree: folders are compared as if their name ended with a slash.
pub(super) fn compare_names(one: (&[u8], bool), other: (&[u8], bool)) -> Ordering {
    let common = one.0.len().min(other.0.len());
    let next = |name: (&[u8], bool)| name.0.get(common).copied().unwrap_or(if name.1 { b'/' } else { 0 });
    one.0[..common]
        .cmp(&other.0[..common])
        .then_with(|| next(one).cmp(&next(other)))
        .then_with(|| one.0.len().cmp(&other.0.len()))
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(ENTRY_HEADER_LENGTH)?;
        let path = &rest[..rest.iter().position(|byte| *byte == 0)?];
        let entry = Self { head, path };
        let flags = u16::from_be_bytes(head[60..].try_into().ok()?);
        let length = usize::from(flags & 0xfff);
        let plain = flags & 0xc000 == 0 && (length == path.len() || length == 0xfff && path.len() >= length);
        let known = matches!(entry.mode(), 0o100_644 | 0o100_755 | 0o120_000);
        // Names that git does not allow in trees; some of them would lead outside the folder.
        let odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.eq_ignore_ascii_case(b".git");
        let names = path.split(|byte| *byte == b'/');
        let named = names.clone().count() <= MAX_DEPTH && !names.into_iter().any(odd);
        (plain && known && named).then_some(entry)
    }

    fn precedes(&self, next: &Self) -> bool {
        match self.path.cmp(next.path) {
            Ordering::Less => true,
            Ordering::Equal => 0 < self.stage() && self.stage() < next.stage(),
            Ordering::Greater => false,
        }
    }

    fn field(&self, place: usize) -> u32 {
        let bytes: [u8; 4] = [0, 1, 2, 3].map(|byte| self.head[4 * place + byte]);
        u32::from_be_bytes(bytes)
    }

    fn modified_seconds(&self) -> u32 {
        self.field(2)
    }

    pub(super) fn mode(&self) -> u32 {
        self.field(6)
    }

    /// Size when git last read the file; zero also if unknown.
    pub(super) fn size(&self) -> u32 {
        self.field(9)
    }

    pub(super) fn id(&self) -> ObjectId {
        ObjectId::from_bytes(std::array::from_fn(|at| self.head[40 + at]))
    }

    /// Zero, or the side of a conflict.
    pub(super) fn stage(&self) -> u8 {
        (self.head[60] >> 4) & 3
    }

    /// Whether the metadata are those of the last read. Nanoseconds are only compared if the index has them.
    pub(super) fn matches_metadata(&self, stat: &Stat) -> bool {
        let time = |place: usize, seconds: u32, nanoseconds: u32| {
            let known = self.field(place + 1);
            self.field(place) == seconds && (known == 0 || known == nanoseconds)
        };
        time(0, stat.st_ctime as u32, stat.st_ctime_nsec as u32)
            && time(2, stat.st_mtime as u32, stat.st_mtime_nsec as u32)
            && self.field(5) == stat.st_ino as u32
            && self.field(7) == stat.st_uid
            && self.field(8) == stat.st_gid
            && self.size() == stat.st_size as u32
    }
}

/// Parses the extensions behind the entries. Only the cache tree is used; the others are optional. A lower-case name
/// marks an extension that must be understood.
fn parse_extensions(mut rest: &[u8]) -> Option<Option<CacheTree>> {
    let mut trees = None;
    while !rest.is_empty() {
        let (name, behind) = rest.split_first_chunk::<4>()?;
        let (length, behind) = behind.split_first_chunk::<4>()?;
        let (mut content, behind) = behind.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        match name {
            b"TREE" => {
                trees = Some(CacheTree::parse(&mut content, 0)?);
                content.is_empty().then_some(())?;
            }
            b"REUC" | b"UNTR" | b"EOIE" | b"IEOT" => {}
            _ => return None,
        }
        rest = behind;
    }
    Some(trees)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Serializes an index with these paths and flags, followed by extensions.
    fn index(paths: &[(&str, u16)], behind: &[u8]) -> Vec<u8> {
        let mut bytes = [b"DIRC\0\0\0\x02".as_slice(), &(paths.len() as u32).to_be_bytes()].concat();
        for (path, flags) in paths {
            let mut entry = vec![0; ENTRY_HEADER_LENGTH];
            entry[24..28].copy_from_slice(&0o100_644_u32.to_be_bytes());
            entry[60..].copy_from_slice(&(flags | path.len() as u16).to_be_bytes());
            entry.extend(path.bytes());
            entry.resize((entry.len() + 8) & !7, 0);
            bytes.extend(entry);
        }
        [&bytes, behind, &[0; 20]].concat()
    }

    fn parse(paths: &[(&str, u16)]) -> Option<Index> {
        Index::parse(index(paths, b""), 0)
    }

    #[test]
    fn children_distinguish_folders_files_and_conflicts() {
        let index =
            parse(&[("a", 0), ("a.b", 0), ("a/b/c", 0), ("a/d", 0), ("a0", 0x1000), ("a0", 0x2000)]).unwrap();
        let names = |entries: Range<usize>, folder| {
            let children = index.children(entries, folder).unwrap();
            let describe = |child: &Child<'_>| {
                (String::from_utf8(child.name.to_vec()).unwrap(), child.is_folder, child.entries.clone())
            };
            children.iter().map(describe).collect::<Vec<_>>()
        };
        let name = |name: &str, is_folder, entries| (name.to_owned(), is_folder, entries);
        assert_eq!(
            names(0..6, 0),
            [
                name("a", false, 0..1),
                name("a.b", false, 1..2),
                name("a", true, 2..4),
                name("a0", false, 4..6)
            ]
        );
        assert_eq!(names(2..4, 2), [name("b", true, 2..3), name("d", false, 3..4)]);
        assert!(index.find(b"a/d").is_some() && index.find(b"a0").is_none() && index.find(b"b").is_none());
    }

    #[test]
    fn unordered_entries_and_special_features_are_refused() {
        assert!(parse(&[("a", 0), ("b", 0)]).is_some());
        for wrong in [
            &[("b", 0), ("a", 0)][..],
            &[("a", 0), ("a", 0)],
            &[("a", 0), ("a", 0x1000)],
            &[("a", 0x2000), ("a", 0x1000)],
            &[("a", 0x8000)],
            &[("a", 0x4000)],
            &[("", 0)],
        ] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
        for name in ["..", ".", "/a", "a/", "a/../b", "a//b", ".git/config", "a/.GIT/x", &"d/".repeat(65)] {
            assert!(parse(&[(name, 0)]).is_none(), "{name}");
        }
        for extension in ["link", "sdir", "FSMN", "XXXX"] {
            let behind = [extension.as_bytes(), &[0; 4]].concat();
            assert!(Index::parse(index(&[("a", 0)], &behind), 0).is_none(), "{extension}");
        }
    }

    #[test]
    fn wrong_counts_do_not_allocate() {
        let mut bytes = index(&[("a", 0)], b"");
        bytes[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(Index::parse(bytes, 0).is_none());
        let tree = b"\x001 4000000000\n01234567890123456789";
        let behind = [b"TREE".as_slice(), &(tree.len() as u32).to_be_bytes(), tree].concat();
        assert!(Index::parse(index(&[("a", 0)], &behind), 0).is_none());
        // Unlimited nesting.
        let tree = b"\x001 1\n01234567890123456789".repeat(100_000);
        let behind = [b"TREE".as_slice(), &(tree.len() as u32).to_be_bytes(), &tree].concat();
        assert!(Index::parse(index(&[("a", 0)], &behind), 0).is_none());
    }

    proptest! {
        #[test]
        fn any_index_is_read_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let tree = b"\x002 1\n01234567890123456789d\x001 0\n01234567890123456789";
            let behind = [b"TREE".as_slice(), &(tree.len() as u32).to_be_bytes(), tree].concat();
            let mut bytes = index(&[("a", 0), ("d/e", 0), ("f", 0x1000), ("f", 0x3000)], &behind);
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 2);
            if let Some(index) = Index::parse(bytes, 0) {
                for child in index.children(0..index.len(), 0).unwrap_or_default() {
                    let _ = index.children(child.entries, child.name.len() + 1);
                }
                for at in 0..index.len() {
                    let entry = index.entry(at);
                    let _ = (entry.id(), entry.stage(), index.is_racy(&entry), index.find(entry.path));
                }
            }
        }

        /// Names of trees are ordered like the paths of an index.
        #[test]
        fn names_are_in_the_order_of_paths(one in "[a-c./!0]{1,4}", other in "[a-c./!0]{1,4}") {
            let key = |text: &str| (text.replace('/', ""), text.contains('/'));
            let ((a, b), (c, d)) = (key(&one), key(&other));
            let path = |name: &str, is_folder: bool| if is_folder { format!("{name}/x") } else { name.to_owned() };
            let expected = path(&a, b).cmp(&path(&c, d));
            prop_assert_eq!(compare_names((a.as_bytes(), b), (c.as_bytes(), d)), expected);
        }
    }
}
