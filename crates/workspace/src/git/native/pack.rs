//! Reads packs and their indexes (gitformat-pack(5)).

use std::path::PathBuf;

use flate2::Decompress;

use super::{ObjectId, block_cache::CachedFile, inflate::inflate};
use crate::{Roots, roots::FinalLink};

/// Offset of the object ids in an index of version 2, after header and fan-out table.
const IDS_OFFSET: u64 = 8 + 4 * 256;
/// Limit of a delta chain. Git's default is 50.
const MAX_CHAIN: usize = 256;
/// Limit of all deltas of a chain, in bytes.
const MAX_DELTA_BYTES: usize = 8 << 20;

/// A pack. Its data file is opened on first use.
#[derive(Debug)]
pub(super) struct Pack {
    index: CachedFile,
    count: u64,
    path: PathBuf,
    data: Option<CachedFile>,
}

/// An entry of a pack.
enum Entry {
    /// Kind and length of a complete object.
    Whole(u8, u64),
    /// A delta: offset of its base, and its own length.
    Delta(u64, u64),
}

impl Pack {
    /// Opens the pack with this index.
    pub(super) fn open(roots: &Roots, index: PathBuf) -> Option<Self> {
        let mut blocks =
            CachedFile::new(roots.find(&index, FinalLink::Follow).ok()?.open_for_reading().ok()?);
        if blocks.array_at::<8>(0)? != *b"\xfftOc\0\0\0\x02" {
            return None;
        }
        let count = read_u32(&mut blocks, IDS_OFFSET - 4)?;
        Some(Self { index: blocks, count, path: index.with_extension("pack"), data: None })
    }

    /// The offset of an object in the pack. The outer `Option` is `None` for an invalid index.
    pub(super) fn find_offset(&mut self, id: &ObjectId) -> Option<Option<u64>> {
        let (place, is_there) = self.position(id)?;
        if is_there { self.offset(place).map(Some) } else { Some(None) }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The ids before and after this one in the sorted list.
    pub(super) fn neighbours(&mut self, id: &ObjectId) -> Option<Vec<ObjectId>> {
        let (place, is_there) = self.position(id)?;
        let next = if is_there { place + 1 } else { place };
        let places = [place.checked_sub(1), Some(next).filter(|next| *next < self.count)];
        places
            .into_iter()
            .flatten()
            .map(|place| self.index.array_at(IDS_OFFSET + 20 * place).map(ObjectId::from_bytes))
            .collect()
    }

    /// The position of an id in the sorted list, or where it would be inserted.
    fn position(&mut self, id: &ObjectId) -> Option<(u64, bool)> {
        let first = u64::from(id.bytes()[0]);
        let mut low = if first == 0 { 0 } else { read_u32(&mut self.index, 8 + 4 * (first - 1))? };
        let mut high = read_u32(&mut self.index, 8 + 4 * first)?.min(self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let name: [u8; 20] = self.index.array_at(IDS_OFFSET + 20 * middle)?;
            match name.cmp(id.bytes()) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some((middle, true)),
            }
        }
        Some((low, false))
    }

    fn offset(&mut self, place: u64) -> Option<u64> {
        // Checksums of 4 bytes each follow the ids, then the offsets.
        let small = read_u32(&mut self.index, IDS_OFFSET + 24 * self.count + 4 * place)?;
        if small < 1 << 31 {
            return Some(small);
        }
        let large = IDS_OFFSET + 28 * self.count + 8 * (small - (1 << 31));
        self.index.array_at(large).map(u64::from_be_bytes)
    }

    /// Reads the object at an offset: kind and content.
    pub(super) fn read(
        &mut self,
        roots: &Roots,
        mut at: u64,
        tool: &mut Decompress,
    ) -> Option<(u8, Vec<u8>)> {
        if self.data.is_none() {
            let mut data =
                CachedFile::new(roots.find(&self.path, FinalLink::Follow).ok()?.open_for_reading().ok()?);
            if data.array_at::<8>(0)? != *b"PACK\0\0\0\x02" {
                return None;
            }
            self.data = Some(data);
        }
        let (mut differences, mut held) = (Vec::new(), 0);
        let (kind, mut whole) = loop {
            let (entry, content) = self.read_entry(at)?;
            let data = self.data.as_mut()?;
            match entry {
                Entry::Whole(kind, length) => break (kind, inflate(data, content, length, tool)?),
                Entry::Delta(base, length) => {
                    let difference = inflate(data, content, length, tool)?;
                    held += difference.len();
                    differences.push(difference);
                    at = base;
                }
            }
            if differences.len() > MAX_CHAIN || held > MAX_DELTA_BYTES {
                return None;
            }
        };
        while let Some(difference) = differences.pop() {
            whole = apply_delta(&whole, &difference)?;
        }
        Some((kind, whole))
    }

    /// Parses the header of an entry, and returns it with the offset of its data.
    fn read_entry(&mut self, at: u64) -> Option<(Entry, u64)> {
        let mut here = at;
        let mut byte = self.read_byte(&mut here)?;
        let (kind, mut length, mut shift) = ((byte >> 4) & 7, u64::from(byte & 15), 4);
        while byte & 0x80 != 0 {
            byte = self.read_byte(&mut here)?;
            length |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 57)?;
            shift += 7;
        }
        match kind {
            1..=4 => Some((Entry::Whole(kind, length), here)),
            6 => {
                byte = self.read_byte(&mut here)?;
                let mut back = u64::from(byte & 0x7f);
                while byte & 0x80 != 0 {
                    byte = self.read_byte(&mut here)?;
                    back = (back + 1).checked_mul(128)? + u64::from(byte & 0x7f);
                }
                // A base always precedes its delta, so chains have no cycles.
                let base = at.checked_sub(back).filter(|_| back > 0)?;
                Some((Entry::Delta(base, length), here))
            }
            7 => {
                let id = ObjectId::from_bytes(self.data.as_mut()?.array_at(here)?);
                Some((Entry::Delta(self.find_offset(&id)??, length), here + 20))
            }
            _ => None,
        }
    }

    fn read_byte(&mut self, at: &mut u64) -> Option<u8> {
        let byte = *self.data.as_mut()?.bytes_at(*at)?.first()?;
        *at += 1;
        Some(byte)
    }
}

fn read_u32(blocks: &mut CachedFile, at: u64) -> Option<u64> {
    blocks.array_at(at).map(|bytes| u64::from(u32::from_be_bytes(bytes)))
}

/// Applies a delta to its base.
fn apply_delta(base: &[u8], difference: &[u8]) -> Option<Vec<u8>> {
    let mut rest = difference;
    if read_length(&mut rest)? != base.len() as u64 {
        return None;
    }
    let size = read_length(&mut rest).filter(|size| *size <= super::inflate::MAX_OBJECT_BYTES)?;
    let size = usize::try_from(size).ok()?;
    let mut whole = Vec::with_capacity(size);
    while let Some((order, behind)) = rest.split_first() {
        rest = behind;
        if order & 0x80 == 0 {
            // The next bytes are new content. A length of zero is invalid.
            let (new, behind) = rest.split_at_checked(usize::from(*order)).filter(|_| *order != 0)?;
            whole.extend_from_slice(new);
            rest = behind;
        } else {
            let from = read_sparse(&mut rest, order & 0x0f)?;
            let count = match read_sparse(&mut rest, (order >> 4) & 7)? {
                0 => 0x1_0000,
                count => count,
            };
            whole.extend_from_slice(base.get(from..from.checked_add(count)?)?);
        }
        if whole.len() > size {
            return None;
        }
    }
    (whole.len() == size).then_some(whole)
}

fn read_length(rest: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f).checked_shl(shift).filter(|_| shift < 57)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
}

/// A number without its zero bytes; each bit shows whether a byte is present.
fn read_sparse(rest: &mut &[u8], bits: u8) -> Option<usize> {
    let mut number = 0;
    for place in (0..4).filter(|place| bits & (1 << place) != 0) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= usize::from(*byte) << (8 * place);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_difference_copies_and_adds() {
        // Copies "hello" from the 11 bytes of the base, then adds " you".
        let difference = [11, 9, 0x90, 5, 4, b' ', b'y', b'o', b'u'];
        assert_eq!(apply_delta(b"hello world", &difference).unwrap(), b"hello you");
        for wrong in [
            &[10, 9, 0x90, 5][..],
            &[11, 9, 0x90, 5],
            &[11, 5, 0x91, 7, 5],
            &[11, 0, 0],
            &[11, 200, 200, 200, 200, 200, 1],
            &[0x80],
        ] {
            assert_eq!(apply_delta(b"hello world", wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_difference_is_applied_or_refused(
            base in prop::collection::vec(any::<u8>(), 0..40),
            difference in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let size = base.len() as u8;
            let _ = apply_delta(&base, &[&[size, 20][..], &difference].concat());
            let _ = apply_delta(&base, &difference);
        }
    }
}
