//! The cache tree of an index (extension `TREE`, gitformat-index(5)).

use super::{ObjectId, index::MAX_DEPTH};

/// The tree objects of folders when the index was last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheTree {
    name: Vec<u8>,
    /// Number of covered entries and the tree's id; `None` if anything below has changed.
    tree: Option<(usize, ObjectId)>,
    children: Vec<CacheTree>,
}

impl CacheTree {
    /// The folder's tree and the number of entries that it covers, if nothing below has changed.
    pub(super) fn tree(&self) -> Option<(usize, ObjectId)> {
        self.tree
    }

    pub(super) fn child(&self, name: &[u8]) -> Option<&Self> {
        let place = self.children.binary_search_by(|tree| tree.name.as_slice().cmp(name)).ok()?;
        self.children.get(place)
    }

    /// Parses the extension recursively.
    pub(super) fn parse(rest: &mut &[u8], depth: usize) -> Option<Self> {
        let name = take_until(rest, 0)?.to_vec();
        let covered = std::str::from_utf8(take_until(rest, b' ')?).ok()?.parse::<i64>().ok()?;
        let count = std::str::from_utf8(take_until(rest, b'\n')?).ok()?.parse::<usize>().ok()?;
        let whole = match usize::try_from(covered) {
            Err(_) => None,
            Ok(covered) => {
                let (id, behind) = rest.split_first_chunk::<20>()?;
                *rest = behind;
                Some((covered, ObjectId::from_bytes(*id)))
            }
        };
        // Every tree consumes input, so a wrong count ends with an error.
        let depth = depth.checked_add(1).filter(|depth| *depth <= MAX_DEPTH + 1)?;
        let mut below = (0..count).map(|_| Self::parse(rest, depth)).collect::<Option<Vec<_>>>()?;
        below.sort_by(|one, other| one.name.cmp(&other.name));
        Some(Self { name, tree: whole, children: below })
    }
}

fn take_until<'a>(rest: &mut &'a [u8], end: u8) -> Option<&'a [u8]> {
    let place = rest.iter().position(|byte| *byte == end)?;
    let (part, behind) = rest.split_at(place);
    *rest = &behind[1..];
    Some(part)
}
