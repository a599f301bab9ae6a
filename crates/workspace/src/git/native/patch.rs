//! Writes patches in the format of `git diff`.

use std::ops::Range;

use super::{
    line_diff::{Change, split_lines, unique_changes},
    tree_diff::FileVersion,
};

/// How much of a content is examined for zero bytes, in bytes.
const BINARY_CHECK_BYTES: usize = 8_000;
/// Limit of the text after the line numbers of a hunk header, in bytes.
const MAX_TITLE_BYTES: usize = 80;

/// One side of a changed file: mode, abbreviated object id and content.
pub(super) struct PatchSide<'a> {
    pub(super) side: FileVersion,
    pub(super) short_id: String,
    pub(super) content: &'a [u8],
}

/// Numbers of added and deleted lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LineCounts {
    pub(super) additions: u64,
    pub(super) deletions: u64,
    pub(super) binary: bool,
}

/// Neighbouring changes with their common context.
struct Hunk<'c> {
    changes: &'c [Change],
    old: Range<usize>,
    new: Range<usize>,
}

/// A changed file. At least one side exists.
pub(super) struct FilePatch<'a> {
    pub(super) path: &'a [u8],
    pub(super) old: Option<PatchSide<'a>>,
    pub(super) new: Option<PatchSide<'a>>,
    pub(super) zero_id: &'a str,
}

impl FilePatch<'_> {
    /// Appends the patch of this file. `None` if git might write it differently.
    pub(super) fn write(&self, context: usize, into: &mut Vec<u8>) -> Option<LineCounts> {
        let [a, b] = [&b"a/"[..], &b"b/"[..]].map(|side| quote_path(side, self.path));
        self.write_head(&a, &b, into);
        let [old, new] =
            [&self.old, &self.new].map(|file| file.as_ref().map_or(&[][..], |file| file.content));
        let binary = is_binary(old) || is_binary(new);
        let counts = LineCounts { binary, ..LineCounts::default() };
        let id = |file: &Option<PatchSide<'_>>| file.as_ref().map(|file| file.side.id);
        if id(&self.old) == id(&self.new) {
            return Some(counts);
        }
        self.write_ids(into);
        let nowhere = || b"/dev/null".to_vec();
        let a = if self.old.is_some() { a } else { nowhere() };
        let b = if self.new.is_some() { b } else { nowhere() };
        if binary {
            into.extend([&b"Binary files "[..], &a, b" and ", &b, b" differ\n"].concat());
            return Some(counts);
        }
        let (old, new) = (split_lines(old)?, split_lines(new)?);
        let changes = unique_changes(&old, &new);
        if !changes.is_empty() {
            let tab = |label: &[u8]| if label.contains(&b' ') { &b"\t"[..] } else { b"" };
            into.extend([&b"--- "[..], &a, tab(&a), b"\n+++ ", &b, tab(&b), b"\n"].concat());
        }
        for hunk in hunks(&changes, (old.len(), new.len()), context) {
            hunk.write(&old, &new, into)?;
        }
        let count = |lines: fn(&Change) -> usize| changes.iter().map(|change| lines(change) as u64).sum();
        let (additions, deletions) = (count(|change| change.new.len()), count(|change| change.old.len()));
        Some(LineCounts { additions, deletions, binary: false })
    }

    fn write_head(&self, a: &[u8], b: &[u8], into: &mut Vec<u8>) {
        into.extend([&b"diff --git "[..], a, b" ", b, b"\n"].concat());
        let modes = match (&self.old, &self.new) {
            (Some(old), Some(new)) if old.side.mode != new.side.mode => {
                format!("old mode {:06o}\nnew mode {:06o}\n", old.side.mode, new.side.mode)
            }
            (None, Some(new)) => format!("new file mode {:06o}\n", new.side.mode),
            (Some(old), None) => format!("deleted file mode {:06o}\n", old.side.mode),
            _ => String::new(),
        };
        into.extend(modes.bytes());
    }

    fn write_ids(&self, into: &mut Vec<u8>) {
        let [old, new] =
            [&self.old, &self.new].map(|file| file.as_ref().map_or(self.zero_id, |file| &*file.short_id));
        let mode = match (&self.old, &self.new) {
            (Some(old), Some(new)) if old.side.mode == new.side.mode => format!(" {:06o}", old.side.mode),
            _ => String::new(),
        };
        into.extend(format!("index {old}..{new}{mode}\n").bytes());
    }
}

fn is_binary(content: &[u8]) -> bool {
    content[..content.len().min(BINARY_CHECK_BYTES)].contains(&0)
}

/// Changes whose contexts touch form one hunk.
fn hunks(changes: &[Change], (old, new): (usize, usize), context: usize) -> Vec<Hunk<'_>> {
    let apart = |one: &Change, next: &Change| next.old.start - one.old.end <= context.saturating_mul(2);
    let around = |changes: &[Change]| {
        let (first, last) = (changes.first()?, changes.last()?);
        let before = context.min(first.old.start).min(first.new.start);
        let behind = context.min(old - last.old.end).min(new - last.new.end);
        let old = first.old.start - before..last.old.end + behind;
        Some((old, first.new.start - before..last.new.end + behind))
    };
    let groups = changes.chunk_by(apart);
    groups.filter_map(|changes| around(changes).map(|(old, new)| Hunk { changes, old, new })).collect()
}

impl Hunk<'_> {
    fn write(&self, old: &[&[u8]], new: &[&[u8]], into: &mut Vec<u8>) -> Option<()> {
        let head = format!("@@ -{} +{} @@", format_range(&self.old), format_range(&self.new));
        into.extend_from_slice(head.as_bytes());
        if let Some(title) = old[..self.old.start].iter().rev().find(|line| is_title(line)) {
            into.push(b' ');
            into.extend_from_slice(shorten_title(title)?);
        }
        into.push(b'\n');
        let mut append = |sign: u8, lines: &[&[u8]]| {
            for line in lines {
                into.push(sign);
                into.extend_from_slice(line);
                if !line.ends_with(b"\n") {
                    into.extend_from_slice(b"\n\\ No newline at end of file\n");
                }
            }
        };
        let mut here = self.old.start;
        for change in self.changes {
            append(b' ', &old[here..change.old.start]);
            append(b'-', &old[change.old.clone()]);
            append(b'+', &new[change.new.clone()]);
            here = change.old.end;
        }
        append(b' ', &old[here..self.old.end]);
        Some(())
    }
}

/// First line and number of lines, as in a hunk header. An empty range has the line before it.
fn format_range(lines: &Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

/// Whether a line may appear in a hunk header (default pattern, gitattributes(5)).
fn is_title(line: &[u8]) -> bool {
    line.first().is_some_and(|byte| byte.is_ascii_alphabetic() || b"_$".contains(byte))
}

/// Shortens the text of a hunk header. `None` if a character would be split.
fn shorten_title(line: &[u8]) -> Option<&[u8]> {
    let line = &line[..line.len().min(MAX_TITLE_BYTES)];
    let end = line.iter().rposition(|byte| !b" \t\r\n".contains(byte)).map_or(0, |last| last + 1);
    // Git ends the text at noncharacters of Unicode.
    let none = |character: char| character == '\0' || u32::from(character) & 0xfffe == 0xfffe;
    std::str::from_utf8(&line[..end]).ok().filter(|text| !text.contains(none)).map(str::as_bytes)
}

/// Quotes a path as git does with `core.quotePath=false`.
fn quote_path(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| !byte.is_ascii_control() && !b"\"\\".contains(byte);
    if path.iter().all(plain) {
        return [prefix, path].concat();
    }
    let mut quoted = [&b"\""[..], prefix].concat();
    for byte in path {
        let letter = match byte {
            7 => b'a',
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            11 => b'v',
            12 => b'f',
            b'\r' => b'r',
            b'"' | b'\\' => *byte,
            byte if plain(byte) => {
                quoted.push(*byte);
                continue;
            }
            byte => {
                quoted.extend_from_slice(format!("\\{byte:03o}").as_bytes());
                continue;
            }
        };
        quoted.extend([b'\\', letter]);
    }
    quoted.push(b'"');
    quoted
}
