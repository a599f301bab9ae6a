//! The index (gitformat-index(5)): which files git knows, and how each looked when it last read it.

use std::{cmp::Ordering, ops::Range};

use rustix::fs::{FileType, Stat};

use super::{Id, Reader, trees::Trees};
use crate::{Error, roots::Last};

/// The largest index that is read, in bytes: some 300,000 files.
const LARGEST: u64 = 24 << 20;
/// Signature, version and number of entries.
const HEAD: usize = 12;
/// What an entry says before its path.
const ENTRY: usize = 62;
/// Folders in folders.
pub(super) const DEEPEST: usize = 64;

/// What an index says, in the order of its paths.
#[derive(Debug, Default)]
pub(super) struct Index {
    bytes: Vec<u8>,
    /// Where each entry begins, and how long its path is.
    entries: Vec<(u32, u32)>,
    trees: Option<Trees>,
    /// When it was written. What changed in that second may have changed after it was looked at.
    written: i64,
}

/// A file that git knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    head: &'a [u8],
    pub(super) path: &'a [u8],
}

/// A name in a folder of the index, and the entries that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Child<'a> {
    pub(super) name: &'a [u8],
    pub(super) is_folder: bool,
    pub(super) entries: Range<usize>,
}

impl Reader<'_> {
    /// The index; an empty one where there is none yet.
    pub(super) fn index(&self) -> Option<Index> {
        let found = match self.roots.find(&self.repository.git_dir.join("index"), Last::Keep) {
            Err(Error::UnknownPath { .. }) => return Some(Index::default()),
            found => found.ok().filter(|found| found.kind() == FileType::RegularFile)?,
        };
        Index::parse(found.content(LARGEST + 1).ok()?, found.stat().st_mtime)
    }
}

impl Index {
    /// `None` for what is not of version 2, is not in order, or says more than names and contents: parts of it in other
    /// files, entries that stand for folders, entries that are not to be looked at.
    pub(super) fn parse(bytes: Vec<u8>, written: i64) -> Option<Self> {
        let end = bytes.len().checked_sub(20).filter(|_| bytes.len() as u64 <= LARGEST)?;
        if bytes.get(..8)? != b"DIRC\0\0\0\x02" {
            return None;
        }
        let count = usize::try_from(number(&bytes, 8)?).ok()?;
        // No entry is shorter than 64 bytes; so much is never set aside for what is not there.
        let mut entries = Vec::with_capacity(count.min(bytes.len() / 64));
        let mut at = HEAD;
        let mut last: Option<Entry<'_>> = None;
        for _ in 0..count {
            let entry = Entry::parse(bytes.get(at..end)?)?;
            if last.is_some_and(|last| !last.is_before(&entry)) {
                return None;
            }
            entries.push((u32::try_from(at).ok()?, u32::try_from(entry.path.len()).ok()?));
            // At least one zero byte follows, and each begins at a multiple of 8.
            at += (ENTRY + entry.path.len() + 8) & !7;
            last = Some(entry);
        }
        let trees = extensions(bytes.get(at..end)?)?;
        Some(Self { bytes, entries, trees, written })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entry(&self, at: usize) -> Entry<'_> {
        let (begin, length) = self.entries[at];
        let begin = begin as usize;
        let path = begin + ENTRY;
        Entry { head: &self.bytes[begin..path], path: &self.bytes[path..path + length as usize] }
    }

    pub(super) fn trees(&self) -> Option<&Trees> {
        self.trees.as_ref()
    }

    /// The entry of a path in which no two changes meet.
    pub(super) fn find(&self, path: &[u8]) -> Option<Entry<'_>> {
        let at = self.first(0..self.len(), |entry| entry.path >= path);
        (at < self.len()).then(|| self.entry(at)).filter(|entry| entry.path == path && entry.stage() == 0)
    }

    /// The paths in which two changes meet.
    pub(super) fn conflicted(&self) -> impl Iterator<Item = &[u8]> {
        let sides = (0..self.len()).filter(|at| self.entry(*at).stage() > 0);
        let first = sides.filter(|at| *at == 0 || self.entry(at - 1).path != self.entry(*at).path);
        first.map(|at| self.entry(at).path)
    }

    /// The names in a folder; the paths of these entries begin with its own, which is so long, its last slash included.
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
                    self.first(at..entries.end, |entry| !entry.path.starts_with(below))
                }
                None => self.first(at..entries.end, |entry| entry.path != path),
            };
            let name = &rest[..slash.unwrap_or(rest.len())];
            children.push(Child { name, is_folder: slash.is_some(), entries: at..end });
            at = end;
        }
        Some(children)
    }

    /// The first entry of which something holds that holds for all behind it too.
    fn first(&self, entries: Range<usize>, holds: impl Fn(Entry<'_>) -> bool) -> usize {
        // Most folders are small, and most names stand for one entry.
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

    /// Whether a file may have changed in the second in which this was written, and looks as it did.
    pub(super) fn is_racy(&self, entry: &Entry<'_>) -> bool {
        self.written as u32 != 0 && self.written as u32 <= entry.modified_seconds()
    }
}

/// The order in which names stand in a tree: a folder's as though it ended in a slash.
pub(super) fn order(one: (&[u8], bool), other: (&[u8], bool)) -> Ordering {
    let common = one.0.len().min(other.0.len());
    let next = |name: (&[u8], bool)| name.0.get(common).copied().unwrap_or(if name.1 { b'/' } else { 0 });
    one.0[..common]
        .cmp(&other.0[..common])
        .then_with(|| next(one).cmp(&next(other)))
        .then_with(|| one.0.len().cmp(&other.0.len()))
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(ENTRY)?;
        let path = &rest[..rest.iter().position(|byte| *byte == 0)?];
        let entry = Self { head, path };
        let flags = u16::from_be_bytes(head[60..].try_into().ok()?);
        let length = usize::from(flags & 0xfff);
        let plain = flags & 0xc000 == 0 && (length == path.len() || length == 0xfff && path.len() >= length);
        let known = matches!(entry.mode(), 0o100_644 | 0o100_755 | 0o120_000);
        // Names that no tree may hold; some would lead elsewhere.
        let odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.eq_ignore_ascii_case(b".git");
        let names = path.split(|byte| *byte == b'/');
        let named = names.clone().count() <= DEEPEST && !names.into_iter().any(odd);
        (plain && known && named).then_some(entry)
    }

    fn is_before(&self, next: &Self) -> bool {
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

    /// Its size when it was last read; zero too where that is not known.
    pub(super) fn size(&self) -> u32 {
        self.field(9)
    }

    pub(super) fn id(&self) -> Id {
        Id::of(std::array::from_fn(|at| self.head[40 + at]))
    }

    /// Zero, or which side it is of those that meet.
    pub(super) fn stage(&self) -> u8 {
        (self.head[60] >> 4) & 3
    }

    /// Whether a file looks as it did when it was last read. Where the index has no parts of a second, they say nothing.
    pub(super) fn looks_like(&self, stat: &Stat) -> bool {
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

/// What stands behind the entries: the trees are of use, others only help git to be quick. One with a small letter would
/// have to be understood.
fn extensions(mut rest: &[u8]) -> Option<Option<Trees>> {
    let mut trees = None;
    while !rest.is_empty() {
        let (name, behind) = rest.split_first_chunk::<4>()?;
        let (length, behind) = behind.split_first_chunk::<4>()?;
        let (mut content, behind) = behind.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        match name {
            b"TREE" => {
                trees = Some(Trees::parse(&mut content, 0)?);
                content.is_empty().then_some(())?;
            }
            b"REUC" | b"UNTR" | b"EOIE" | b"IEOT" => {}
            _ => return None,
        }
        rest = behind;
    }
    Some(trees)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An index with these paths, each with its flags, and what stands behind them.
    fn index(paths: &[(&str, u16)], behind: &[u8]) -> Vec<u8> {
        let mut bytes = [b"DIRC\0\0\0\x02".as_slice(), &(paths.len() as u32).to_be_bytes()].concat();
        for (path, flags) in paths {
            let mut entry = vec![0; ENTRY];
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
    fn folders_are_told_from_files_and_sides_of_a_conflict_stand_together() {
        let index =
            parse(&[("a", 0), ("a.b", 0), ("a/b/c", 0), ("a/d", 0), ("a0", 0x1000), ("a0", 0x2000)]).unwrap();
        let names = |entries: Range<usize>, folder| {
            let children = index.children(entries, folder).unwrap();
            let told = |child: &Child<'_>| {
                (String::from_utf8(child.name.to_vec()).unwrap(), child.is_folder, child.entries.clone())
            };
            children.iter().map(told).collect::<Vec<_>>()
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
    fn what_is_out_of_order_or_means_more_is_not_read() {
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
    fn nothing_is_set_aside_for_entries_that_are_not_there() {
        let mut bytes = index(&[("a", 0)], b"");
        bytes[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(Index::parse(bytes, 0).is_none());
        let tree = b"\x001 4000000000\n01234567890123456789";
        let behind = [b"TREE".as_slice(), &(tree.len() as u32).to_be_bytes(), tree].concat();
        assert!(Index::parse(index(&[("a", 0)], &behind), 0).is_none());
        // Trees in trees without end.
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

        /// As the entries of an index stand, so do the names of trees.
        #[test]
        fn names_are_in_the_order_of_paths(one in "[a-c./!0]{1,4}", other in "[a-c./!0]{1,4}") {
            let key = |text: &str| (text.replace('/', ""), text.contains('/'));
            let ((a, b), (c, d)) = (key(&one), key(&other));
            let path = |name: &str, is_folder: bool| if is_folder { format!("{name}/x") } else { name.to_owned() };
            let expected = path(&a, b).cmp(&path(&c, d));
            prop_assert_eq!(order((a.as_bytes(), b), (c.as_bytes(), d)), expected);
        }
    }
}
