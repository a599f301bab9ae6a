//! Walks the commit graph.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, hash_map::Entry},
};

use super::{ObjectId, Reader, commit::ParsedCommit};

/// Limit of commits. Longer walks are left to git.
const MAX_COMMITS: usize = 200_000;
/// How many more commits are examined after a count seems complete, because commit dates may be wrong (`SLOP` in git).
const SLOP: u32 = 5;

/// A node of the commit graph.
pub(super) struct CommitNode {
    parents: Vec<ObjectId>,
    seconds: u64,
}

/// Priority queue of commits: newest first, and in the order of insertion for equal dates.
#[derive(Default)]
struct CommitQueue {
    heap: BinaryHeap<(u64, Reverse<usize>, ObjectId)>,
    seen: usize,
}

impl CommitQueue {
    fn push(&mut self, seconds: u64, id: ObjectId) {
        self.seen += 1;
        self.heap.push((seconds, Reverse(self.seen), id));
    }

    fn pop(&mut self) -> Option<(u64, ObjectId)> {
        self.heap.pop().map(|(seconds, _, id)| (seconds, id))
    }
}

impl Reader<'_> {
    /// A part of the history in the order of `git log`: `count` commits after the first `skip`.
    pub(super) fn history(
        &mut self,
        from: ObjectId,
        skip: usize,
        count: usize,
    ) -> Option<Vec<(ObjectId, Vec<u8>)>> {
        if skip.checked_add(count)? > MAX_COMMITS {
            return None;
        }
        let (mut ahead, mut page) = (CommitQueue::default(), Vec::new());
        let mut seen = HashSet::from([from]);
        let mut contents = HashMap::new();
        let first = self.objects.read_commit(&from)?;
        ahead.push(ParsedCommit::parse(&first)?.committer.seconds, from);
        contents.insert(from, first);
        let (mut passed, mut held) = (0, 0);
        while page.len() < count
            && let Some((_, id)) = ahead.pop()
        {
            self.check_active()?;
            let content = contents.remove(&id)?;
            // Even for the last commit, so that a missing parent leaves the log to git.
            for parent in ParsedCommit::parse(&content)?.parents {
                if seen.insert(parent) {
                    let content = self.objects.read_commit(&parent)?;
                    ahead.push(ParsedCommit::parse(&content)?.committer.seconds, parent);
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
            if held > super::MAX_HELD_BYTES {
                return None;
            }
        }
        Some(page)
    }

    /// Parents and date of a commit.
    fn commit_node(&mut self, id: ObjectId) -> Option<&CommitNode> {
        match self.commit_nodes.entry(id) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let content = self.objects.read_commit(&id)?;
                let ParsedCommit { parents, committer, .. } = ParsedCommit::parse(&content)?;
                Some(new.insert(CommitNode { parents, seconds: committer.seconds }))
            }
        }
    }

    /// Counts the commits that only the first, and only the second, commit reaches.
    pub(super) fn ahead_behind(&mut self, ours: ObjectId, theirs: ObjectId) -> Option<(u64, u64)> {
        const OURS: u8 = 1;
        const BOTH: u8 = 3;

        if ours == theirs {
            return Some((0, 0));
        }
        let theirs_alone = BOTH & !OURS;
        let mut sides = HashMap::from([(ours, OURS), (theirs, theirs_alone)]);
        let (mut ahead, mut waiting) = (CommitQueue::default(), HashSet::from([ours, theirs]));
        for id in [ours, theirs] {
            ahead.push(self.commit_node(id)?.seconds, id);
        }
        // Queued commits that only one side has reached so far, and the oldest date of such a commit that was
        // processed.
        let (mut open, mut oldest, mut slop) = (2_usize, u64::MAX, SLOP);
        while let Some((seconds, id)) = ahead.pop() {
            self.check_active()?;
            waiting.remove(&id);
            let side = *sides.get(&id)?;
            if side != BOTH {
                open = open.checked_sub(1)?;
                oldest = oldest.min(seconds);
            }
            for parent in self.commit_node(id)?.parents.clone() {
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
                ahead.push(self.commit_node(parent)?.seconds, parent);
            }
            if sides.len() > MAX_COMMITS {
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
