//! Walks the commit graph.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, hash_map::Entry},
};

use super::{Id, Reader, commit::Parsed};

/// Limit of commits. Longer walks are left to git.
const MOST: usize = 200_000;
/// How many more commits are examined after a count seems complete, because commit dates may be wrong (`SLOP` in git).
const SLOP: u32 = 5;

/// A node of the commit graph.
pub(super) struct Links {
    parents: Vec<Id>,
    seconds: u64,
}

/// Priority queue of commits: newest first, and in the order of insertion for equal dates.
#[derive(Default)]
struct Ahead {
    heap: BinaryHeap<(u64, Reverse<usize>, Id)>,
    seen: usize,
}

impl Ahead {
    fn push(&mut self, seconds: u64, id: Id) {
        self.seen += 1;
        self.heap.push((seconds, Reverse(self.seen), id));
    }

    fn pop(&mut self) -> Option<(u64, Id)> {
        self.heap.pop().map(|(seconds, _, id)| (seconds, id))
    }
}

impl Reader<'_> {
    /// A part of the history in the order of `git log`: `count` commits after the first `skip`.
    pub(super) fn history(&mut self, from: Id, skip: usize, count: usize) -> Option<Vec<(Id, Vec<u8>)>> {
        if skip.checked_add(count)? > MOST {
            return None;
        }
        let (mut ahead, mut page) = (Ahead::default(), Vec::new());
        let mut seen = HashSet::from([from]);
        let mut contents = HashMap::new();
        let first = self.objects.commit(&from)?;
        ahead.push(Parsed::read(&first)?.committer.seconds, from);
        contents.insert(from, first);
        let (mut passed, mut held) = (0, 0);
        while page.len() < count
            && let Some((_, id)) = ahead.pop()
        {
            self.go_on()?;
            let content = contents.remove(&id)?;
            // Even for the last commit, so that a missing parent leaves the log to git.
            for parent in Parsed::read(&content)?.parents {
                if seen.insert(parent) {
                    let content = self.objects.commit(&parent)?;
                    ahead.push(Parsed::read(&content)?.committer.seconds, parent);
                    held += content.len();
                    contents.insert(parent, content);
                }
            }
            passed += 1;
            if passed > skip {
                page.push((id, content));
            } else {
                held = held.saturating_sub(content.len());
            }
            if held > super::MOST_HELD {
                return None;
            }
        }
        Some(page)
    }

    /// Parents and date of a commit.
    fn links(&mut self, id: Id) -> Option<&Links> {
        match self.links.entry(id) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let content = self.objects.commit(&id)?;
                let Parsed { parents, committer, .. } = Parsed::read(&content)?;
                Some(new.insert(Links { parents, seconds: committer.seconds }))
            }
        }
    }

    /// Counts the commits that only the first, and only the second, commit reaches.
    pub(super) fn ahead_behind(&mut self, ours: Id, theirs: Id) -> Option<(u64, u64)> {
        const OURS: u8 = 1;
        const BOTH: u8 = 3;

        if ours == theirs {
            return Some((0, 0));
        }
        let theirs_alone = BOTH & !OURS;
        let mut sides = HashMap::from([(ours, OURS), (theirs, theirs_alone)]);
        let (mut ahead, mut waiting) = (Ahead::default(), HashSet::from([ours, theirs]));
        for id in [ours, theirs] {
            ahead.push(self.links(id)?.seconds, id);
        }
        // Queued commits that only one side has reached so far, and the oldest date of such a commit that was
        // processed.
        let (mut open, mut oldest, mut slop) = (2_usize, u64::MAX, SLOP);
        while let Some((seconds, id)) = ahead.pop() {
            self.go_on()?;
            waiting.remove(&id);
            let side = *sides.get(&id)?;
            if side != BOTH {
                open = open.checked_sub(1)?;
                oldest = oldest.min(seconds);
            }
            for parent in self.links(id)?.parents.clone() {
                let known = sides.get(&parent).copied().unwrap_or(0);
                let now = known | side;
                if known == now {
                    continue;
                }
                sides.insert(parent, now);
                if !waiting.insert(parent) {
                    // Until now only one side had reached it.
                    open = open.checked_sub(1)?;
                    continue;
                }
                open += usize::from(now != BOTH);
                ahead.push(self.links(parent)?.seconds, parent);
            }
            if sides.len() > MOST {
                return None;
            }
            let done = open == 0 && ahead.heap.peek().is_none_or(|(seconds, ..)| *seconds < oldest);
            slop = if done { slop - 1 } else { SLOP };
            if slop == 0 {
                break;
            }
        }
        let count = |wanted| sides.values().filter(|side| **side == wanted).count() as u64;
        Some((count(OURS), count(theirs_alone)))
    }
}
