//! Reads the objects of a repository from packs and loose files.

use std::{collections::HashMap, path::PathBuf};

use flate2::Decompress;

use super::{ObjectId, block_cache::CachedFile, inflate::inflate_loose, pack::Pack};
use crate::{Error, Roots, roots::FinalLink};

/// Limit of packs. Git's maintenance keeps the number lower.
const MAX_PACKS: usize = 32;
/// Limit of loose objects in one folder. Git would pack them long before.
const MAX_LOOSE: usize = 5_000;
/// Minimum length of an abbreviated object id.
const MIN_ABBREVIATION: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Commit,
    Tree,
    Blob,
    Tag,
}

/// Reader for all objects. Files are never memory-mapped, because truncating a mapped file would end the process.
pub(super) struct Objects<'a> {
    roots: &'a Roots,
    folder: PathBuf,
    packs: Option<Vec<Pack>>,
    abbreviations: Option<Abbreviations>,
    inflater: Decompress,
}

/// Data for the abbreviation of object ids.
struct Abbreviations {
    /// The length for ids without a similar one.
    default_length: usize,
    /// Loose objects by the first byte of their ids; `None` for folders that were not read yet.
    loose: HashMap<u8, Option<Vec<ObjectId>>>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(roots: &'a Roots, folder: PathBuf) -> Self {
        Self { roots, folder, packs: None, abbreviations: None, inflater: Decompress::new(true) }
    }

    /// Reads an object. `None` also if it is too large or not in git's standard format.
    pub(super) fn read(&mut self, id: &ObjectId) -> Option<(ObjectKind, Vec<u8>)> {
        if self.packs.is_none() {
            self.packs = Some(self.find_packs()?);
        }
        let packs = self.packs.as_deref_mut()?;
        for at in 0..packs.len() {
            if let Some(offset) = packs[at].find_offset(id)? {
                let (kind, content) = packs[at].read(self.roots, offset, &mut self.inflater)?;
                // The next object is most likely in the same pack.
                packs.swap(0, at);
                let kind = [ObjectKind::Commit, ObjectKind::Tree, ObjectKind::Blob, ObjectKind::Tag]
                    .get(usize::from(kind) - 1)?;
                return Some((*kind, content));
            }
        }
        self.read_loose(id)
    }

    /// Reads a commit; `None` for other kinds.
    pub(super) fn read_commit(&mut self, id: &ObjectId) -> Option<Vec<u8>> {
        self.read(id).filter(|(kind, _)| *kind == ObjectKind::Commit).map(|(_, content)| content)
    }

    /// The shortest unique prefix of an object id, of at least the default length, as git abbreviates it.
    pub(super) fn abbreviate(&mut self, id: &ObjectId) -> Option<String> {
        if self.packs.is_none() {
            self.packs = Some(self.find_packs()?);
        }
        if self.abbreviations.is_none() {
            self.abbreviations = Some(self.load_abbreviations()?);
        }
        let mut others = self.loose_with_first_byte(id)?;
        for pack in self.packs.as_deref_mut()? {
            others.extend(pack.neighbours(id)?);
        }
        let name = id.to_string();
        let common = |other: &ObjectId| {
            let other = other.to_string();
            name.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
        };
        let longest = others.iter().filter(|other| *other != id).map(common).max();
        let default_length = self.abbreviations.as_ref()?.default_length;
        Some(name[..longest.map_or(0, |longest| longest + 1).max(default_length)].to_owned())
    }

    fn load_abbreviations(&self) -> Option<Abbreviations> {
        // Git counts objects differently if there is an index over several packs.
        let all = self.roots.find(&self.folder.join("pack/multi-pack-index"), FinalLink::NoFollow);
        let Err(Error::UnknownPath { .. }) = all else { return None };
        let count: u64 = self.packs.as_deref()?.iter().map(Pack::count).sum();
        // Among n objects a collision is expected at about half of the digits of n (`core.abbrev` in git).
        let default_length = (u64::BITS - count.leading_zeros()).div_ceil(2).max(MIN_ABBREVIATION) as usize;
        let found = self.roots.find(&self.folder, FinalLink::Follow).ok()?;
        let mut loose = HashMap::new();
        for entry in std::fs::read_dir(found.proc_path()).ok()?.take(MAX_LOOSE) {
            let name = entry.ok()?.file_name();
            if let Ok([first]) = data_encoding::HEXLOWER.decode(name.as_encoded_bytes()).as_deref() {
                loose.insert(*first, None);
            }
        }
        Some(Abbreviations { default_length, loose })
    }

    /// Loose objects whose ids begin with the same byte.
    fn loose_with_first_byte(&mut self, id: &ObjectId) -> Option<Vec<ObjectId>> {
        let first = id.to_string()[..2].to_owned();
        let Some(known) = self.abbreviations.as_mut()?.loose.get_mut(&id.bytes()[0]) else {
            return Some(Vec::new());
        };
        if let Some(ids) = known {
            return Some(ids.clone());
        }
        let found = self.roots.find(&self.folder.join(&first), FinalLink::Follow).ok()?;
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(found.proc_path()).ok()?.take(MAX_LOOSE) {
            let name = [first.as_bytes(), entry.ok()?.file_name().as_encoded_bytes()].concat();
            ids.extend(ObjectId::parse(&name));
        }
        *known = Some(ids.clone());
        (ids.len() < MAX_LOOSE).then_some(ids)
    }

    fn read_loose(&mut self, id: &ObjectId) -> Option<(ObjectKind, Vec<u8>)> {
        let name = id.to_string();
        let path = self.folder.join(&name[..2]).join(&name[2..]);
        let file = self.roots.find(&path, FinalLink::Follow).ok()?.open_for_reading().ok()?;
        let (head, content) = inflate_loose(&mut CachedFile::new(file), &mut self.inflater)?;
        let kind = match head.split(|byte| *byte == b' ').next()? {
            b"commit" => ObjectKind::Commit,
            b"tree" => ObjectKind::Tree,
            b"blob" => ObjectKind::Blob,
            b"tag" => ObjectKind::Tag,
            _ => return None,
        };
        Some((kind, content))
    }

    fn find_packs(&self) -> Option<Vec<Pack>> {
        let folder = self.folder.join("pack");
        let found = self.roots.find(&folder, FinalLink::Follow).ok()?;
        let mut packs = Vec::new();
        for entry in std::fs::read_dir(found.proc_path()).ok()? {
            let name = entry.ok()?.file_name();
            if name.as_encoded_bytes().ends_with(b".idx") {
                packs.push(Pack::open(self.roots, folder.join(name))?);
            }
            if packs.len() > MAX_PACKS {
                return None;
            }
        }
        Some(packs)
    }
}
