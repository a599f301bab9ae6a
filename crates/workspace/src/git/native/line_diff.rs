//! The lines that differ between two texts.
//!
//! Several minimal sets of differing lines may exist. The one that is found here may differ from git's; a patch made of it
//! applies, and its counts are those of its lines.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput};

/// Limit of lines per text.
const MAX_LINES: usize = 100_000;

/// A range of old lines that is replaced by a range of new lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
}

/// Splits a text into lines with their newlines. `None` if there are too many: for a text of empty lines the list
/// takes sixteen times the memory of the text.
pub(super) fn split_lines(text: &[u8]) -> Option<Vec<&[u8]>> {
    let lines = || text.split_inclusive(|byte| *byte == b'\n');
    let count = lines().take(MAX_LINES + 1).count();
    (count <= MAX_LINES).then(|| lines().collect())
}

/// Finds the changes with Myers' algorithm and then slides them to where they read best, as git does.
pub(super) fn unique_changes(old: &[&[u8]], new: &[&[u8]]) -> Vec<Change> {
    let mut input = InternedInput::default();
    input.update_before(old.iter().copied());
    input.update_after(new.iter().copied());
    let mut diff = Diff::compute(Algorithm::Myers, &input);
    diff.postprocess_lines(&input);
    let range = |range: Range<u32>| range.start as usize..range.end as usize;
    diff.hunks().map(|hunk| Change { old: range(hunk.before), new: range(hunk.after) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(old: &str, new: &str) -> Vec<(Range<usize>, Range<usize>)> {
        let split = |text: &str| text.chars().map(|line| format!("{line}\n")).collect::<String>();
        let (old, new) = (split(old), split(new));
        let changes =
            unique_changes(&split_lines(old.as_bytes()).unwrap(), &split_lines(new.as_bytes()).unwrap());
        changes.into_iter().map(|change| (change.old, change.new)).collect()
    }

    #[test]
    fn the_lines_that_differ_are_found() {
        assert_eq!(found("abc", "abc"), []);
        assert_eq!(found("", "ab"), [(0..0, 0..2)]);
        assert_eq!(found("abc", "axc"), [(1..2, 1..2)]);
        assert_eq!(found("abcdefg", "axcdeyzg"), [(1..2, 1..2), (5..6, 5..7)]);
        assert_eq!(found("abc", ""), [(0..3, 0..0)]);
        assert_eq!(found("axb", "axxb").len(), 1);
    }

    #[test]
    fn texts_of_too_many_lines_are_not_split() {
        let text = "\n".repeat(MAX_LINES);
        assert_eq!(split_lines(text.as_bytes()).map(|lines| lines.len()), Some(MAX_LINES));
        assert_eq!(split_lines(format!("{text}x").as_bytes()), None);
    }
}
