//! A line diff that only returns unambiguous results.
//!
//! Git searches for the fewest differing lines with heuristics, and slides changes to where they read best. This code
//! returns a result only if git must have the same: the minimal set of differing lines is unique, no change can slide,
//! and git uses no heuristics for texts like these.

use std::{collections::HashMap, ops::Range};

/// Limit of compared pairs of lines, without the common prefix and suffix.
const MOST_PAIRS: usize = 1 << 20;
/// Limit of lines per text.
const MOST_LINES: usize = 100_000;
/// Number of differing lines from which git uses heuristics.
const SHORTCUTS: usize = 250;

/// A range of old lines that is replaced by a range of new lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
}

/// Splits a text into lines with their newlines. `None` if there are too many: for a text of empty lines the list
/// takes sixteen times the memory of the text.
pub(super) fn lines(text: &[u8]) -> Option<Vec<&[u8]>> {
    let lines = || text.split_inclusive(|byte| *byte == b'\n');
    let count = lines().take(MOST_LINES + 1).count();
    (count <= MOST_LINES).then(|| lines().collect())
}

/// The changes between two texts. `None` if another result would be as good.
pub(super) fn changes(old: &[&[u8]], new: &[&[u8]]) -> Option<Vec<Change>> {
    let (old, new) = numbered(old, new);
    let prefix = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let (behind_old, behind_new) = (&old[prefix..], &new[prefix..]);
    let suffix =
        behind_old.iter().rev().zip(behind_new.iter().rev()).take_while(|(one, other)| one == other).count();
    let middle = (prefix..old.len() - suffix, prefix..new.len() - suffix);
    let same = same(&old, &new, middle.0.clone(), middle.1.clone())?;
    let changes = between(&same, middle.0, middle.1);
    let all_fixed = changes.iter().all(|change| is_fixed(&old, &change.old) && is_fixed(&new, &change.new));
    all_fixed.then_some(changes)
}

/// Replaces lines by numbers; equal lines have equal numbers.
fn numbered<'t>(old: &[&'t [u8]], new: &[&'t [u8]]) -> (Vec<u32>, Vec<u32>) {
    let mut numbers: HashMap<&'t [u8], u32> = HashMap::new();
    let mut number = |line: &&'t [u8]| {
        let next = numbers.len() as u32;
        *numbers.entry(line).or_insert(next)
    };
    (old.iter().map(&mut number).collect(), new.iter().map(&mut number).collect())
}

/// The longest common subsequence of both middle parts, as pairs of line numbers. `None` if it is ambiguous, or if git
/// might not find it.
fn same(old: &[u32], new: &[u32], middle: Range<usize>, other: Range<usize>) -> Option<Vec<(usize, usize)>> {
    let (in_old, in_new) = (counts(old), counts(new));
    let known = |range: Range<usize>, text: &[u32], others: &HashMap<u32, usize>| -> Option<Vec<usize>> {
        let often = text.len().isqrt().max(2);
        let known = range.filter(|at| others.contains_key(&text[*at]));
        // Git ignores lines that occur too often in the other text.
        known.map(|at| (others[&text[at]] < often).then_some(at)).collect()
    };
    if middle.is_empty() || other.is_empty() {
        return Some(Vec::new());
    }
    let differ = |range: &Range<usize>, known: &[usize]| range.len() - known.len();
    let (one, two) = (known(middle.clone(), old, &in_new)?, known(other.clone(), new, &in_old)?);
    let pairs = (one.len() + 1).checked_mul(two.len() + 1).filter(|pairs| *pairs <= MOST_PAIRS)?;
    let is_same = |i: usize, j: usize| old[one[i]] == new[two[j]];
    // Length of the longest common subsequence before each pair, and from it on.
    let width = two.len() + 1;
    let (mut before, mut from) = (vec![0_u16; pairs], vec![0_u16; pairs]);
    for i in 0..one.len() {
        for j in 0..two.len() {
            before[(i + 1) * width + j + 1] = if is_same(i, j) {
                before[i * width + j] + 1
            } else {
                before[i * width + j + 1].max(before[(i + 1) * width + j])
            };
        }
    }
    for i in (0..one.len()).rev() {
        for j in (0..two.len()).rev() {
            from[i * width + j] = if is_same(i, j) {
                from[(i + 1) * width + j + 1] + 1
            } else {
                from[(i + 1) * width + j].max(from[i * width + j + 1])
            };
        }
    }
    let most = usize::from(from[0]);
    let mut same = Vec::with_capacity(most);
    for i in 0..one.len() {
        for j in 0..two.len() {
            let passing = before[i * width + j] + 1 + from[(i + 1) * width + j + 1];
            if is_same(i, j) && usize::from(passing) == most {
                same.push((one[i], two[j]));
            }
        }
        if same.len() > most {
            return None;
        }
    }
    let cost = one.len() + two.len() - 2 * most + differ(&middle, &one) + differ(&other, &two);
    let short = cost < SHORTCUTS || most == 0 && one.is_empty() && two.is_empty();
    (same.len() == most && short).then_some(same)
}

fn counts(text: &[u32]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    for number in text {
        *counts.entry(*number).or_insert(0) += 1;
    }
    counts
}

/// The changes between common lines.
fn between(same: &[(usize, usize)], old: Range<usize>, new: Range<usize>) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut here = (old.start, new.start);
    for (one, other) in same.iter().copied().chain([(old.end, new.end)]) {
        if (one, other) != here {
            changes.push(Change { old: here.0..one, new: here.1..other });
        }
        here = (one + 1, other + 1);
    }
    changes
}

/// Whether the change cannot slide up or down by equal lines.
fn is_fixed(text: &[u32], lines: &Range<usize>) -> bool {
    let Range { start, end } = *lines;
    let up = start > 0 && text[start - 1] == text[end.max(1) - 1];
    let down = text.get(end).is_some_and(|next| *next == text[start]);
    lines.is_empty() || !(up || down)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(old: &str, new: &str) -> Option<Vec<(Range<usize>, Range<usize>)>> {
        let split = |text: &str| text.chars().map(|line| format!("{line}\n")).collect::<String>();
        let (old, new) = (split(old), split(new));
        let changes = changes(&lines(old.as_bytes())?, &lines(new.as_bytes())?)?;
        Some(changes.into_iter().map(|change| (change.old, change.new)).collect())
    }

    #[test]
    fn what_could_be_told_in_one_way_is_told() {
        assert_eq!(told("abc", "abc").unwrap(), []);
        assert_eq!(told("", "ab").unwrap(), [(0..0, 0..2)]);
        assert_eq!(told("abc", "axc").unwrap(), [(1..2, 1..2)]);
        assert_eq!(told("abcdefg", "axcdeyzg").unwrap(), [(1..2, 1..2), (5..6, 5..7)]);
        assert_eq!(told("abc", "").unwrap(), [(0..3, 0..0)]);
    }

    #[test]
    fn texts_of_too_many_lines_are_not_split() {
        let text = "\n".repeat(MOST_LINES);
        assert_eq!(lines(text.as_bytes()).map(|lines| lines.len()), Some(MOST_LINES));
        assert_eq!(lines(format!("{text}x").as_bytes()), None);
    }

    #[test]
    fn what_could_be_told_in_two_ways_is_not() {
        for (old, new) in [("ab", "ba"), ("a", "aa"), ("axb", "axxb"), ("abab", "baba"), ("xay", "xabay")] {
            assert!(told(old, new).is_none(), "{old} {new}");
        }
    }
}
