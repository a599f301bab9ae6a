//! The objects of a repository: in packs, and each in a file of its own.

use std::{collections::HashMap, path::PathBuf};

use flate2::Decompress;

use super::{Id, blocks::Blocks, inflate::inflate_loose, pack::Pack};
use crate::{Error, Roots, roots::Last};

/// Packs that are looked into. A repository with more awaits its maintenance.
const MOST_PACKS: usize = 32;
/// Objects in one folder that are looked at. Git would pack them long before.
const MOST_LOOSE: usize = 5_000;
/// As much as is told of an object's name at least.
const SHORTEST: u32 = 7;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Commit,
    Tree,
    Blob,
    Tag,
}

/// All objects. Nothing is mapped into memory: whoever cuts a mapped file short ends the process.
pub(super) struct Objects<'a> {
    roots: &'a Roots,
    folder: PathBuf,
    packs: Option<Vec<Pack>>,
    names: Option<Names>,
    tool: Decompress,
}

/// What the names of objects are made short by.
struct Names {
    /// How long they are where no two begin alike.
    usual: usize,
    /// Objects in files of their own by their first byte, as far as they were looked for.
    loose: HashMap<u8, Option<Vec<Id>>>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(roots: &'a Roots, folder: PathBuf) -> Self {
        Self { roots, folder, packs: None, names: None, tool: Decompress::new(true) }
    }

    /// What an object is and holds. `None` too where it is too large, or not as git writes it.
    pub(super) fn read(&mut self, id: &Id) -> Option<(Kind, Vec<u8>)> {
        if self.packs.is_none() {
            self.packs = Some(self.find_packs()?);
        }
        let packs = self.packs.as_deref_mut()?;
        for at in 0..packs.len() {
            if let Some(offset) = packs[at].find(id)? {
                let (kind, content) = packs[at].read(self.roots, offset, &mut self.tool)?;
                // The next object is most likely in the same pack.
                packs.swap(0, at);
                let kind = [Kind::Commit, Kind::Tree, Kind::Blob, Kind::Tag].get(usize::from(kind) - 1)?;
                return Some((*kind, content));
            }
        }
        self.read_loose(id)
    }

    /// The same of one that must be a commit.
    pub(super) fn commit(&mut self, id: &Id) -> Option<Vec<u8>> {
        self.read(id).filter(|(kind, _)| *kind == Kind::Commit).map(|(_, content)| content)
    }

    /// As much of an object's name as git tells of it: no other one begins so.
    pub(super) fn short(&mut self, id: &Id) -> Option<String> {
        if self.packs.is_none() {
            self.packs = Some(self.find_packs()?);
        }
        if self.names.is_none() {
            self.names = Some(self.find_names()?);
        }
        let mut others = self.loose_like(id)?;
        for pack in self.packs.as_deref_mut()? {
            others.extend(pack.neighbours(id)?);
        }
        let name = id.to_string();
        let common = |other: &Id| {
            let other = other.to_string();
            name.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
        };
        let longest = others.iter().filter(|other| *other != id).map(common).max();
        let usual = self.names.as_ref()?.usual;
        Some(name[..longest.map_or(0, |longest| longest + 1).max(usual)].to_owned())
    }

    fn find_names(&self) -> Option<Names> {
        // One that stands for all packs counts in another way.
        let all = self.roots.find(&self.folder.join("pack/multi-pack-index"), Last::Keep);
        let Err(Error::UnknownPath { .. }) = all else { return None };
        let count: u64 = self.packs.as_deref()?.iter().map(Pack::count).sum();
        // Of n objects two begin alike in about half of the digits that n takes (git's `core.abbrev`).
        let usual = (u64::BITS - count.leading_zeros()).div_ceil(2).max(SHORTEST) as usize;
        let found = self.roots.find(&self.folder, Last::Follow).ok()?;
        let mut loose = HashMap::new();
        for entry in std::fs::read_dir(found.own_name()).ok()?.take(MOST_LOOSE) {
            let name = entry.ok()?.file_name();
            if let Ok([first]) = data_encoding::HEXLOWER.decode(name.as_encoded_bytes()).as_deref() {
                loose.insert(*first, None);
            }
        }
        Some(Names { usual, loose })
    }

    /// Objects in files of their own whose names begin with the same byte.
    fn loose_like(&mut self, id: &Id) -> Option<Vec<Id>> {
        let first = id.to_string()[..2].to_owned();
        let Some(known) = self.names.as_mut()?.loose.get_mut(&id.bytes()[0]) else { return Some(Vec::new()) };
        if let Some(ids) = known {
            return Some(ids.clone());
        }
        let found = self.roots.find(&self.folder.join(&first), Last::Follow).ok()?;
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(found.own_name()).ok()?.take(MOST_LOOSE) {
            let name = [first.as_bytes(), entry.ok()?.file_name().as_encoded_bytes()].concat();
            ids.extend(Id::parse(&name));
        }
        *known = Some(ids.clone());
        (ids.len() < MOST_LOOSE).then_some(ids)
    }

    fn read_loose(&mut self, id: &Id) -> Option<(Kind, Vec<u8>)> {
        let name = id.to_string();
        let path = self.folder.join(&name[..2]).join(&name[2..]);
        let file = self.roots.find(&path, Last::Follow).ok()?.read().ok()?;
        let (head, content) = inflate_loose(&mut Blocks::new(file), &mut self.tool)?;
        let kind = match head.split(|byte| *byte == b' ').next()? {
            b"commit" => Kind::Commit,
            b"tree" => Kind::Tree,
            b"blob" => Kind::Blob,
            b"tag" => Kind::Tag,
            _ => return None,
        };
        Some((kind, content))
    }

    fn find_packs(&self) -> Option<Vec<Pack>> {
        let folder = self.folder.join("pack");
        let found = self.roots.find(&folder, Last::Follow).ok()?;
        let mut packs = Vec::new();
        for entry in std::fs::read_dir(found.own_name()).ok()? {
            let name = entry.ok()?.file_name();
            if name.as_encoded_bytes().ends_with(b".idx") {
                packs.push(Pack::open(self.roots, folder.join(name))?);
            }
            if packs.len() > MOST_PACKS {
                return None;
            }
        }
        Some(packs)
    }
}
