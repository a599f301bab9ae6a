//! Attributes of files (gitattributes(5)), as far as they decide whether git would convert or compare contents
//! specially.

use std::{collections::HashMap, sync::Arc};

use super::{folder::Folder, index::Index, pattern::Pattern};

/// Limit of a file of attributes, in bytes.
const LONGEST: u64 = 64 << 10;
/// Limit of a line, in bytes. Git ignores longer ones.
const LONGEST_LINE: usize = 2_000;
/// Limit of lines per file.
const MOST_LINES: usize = 200;
const NAME: &[u8] = b".gitattributes";

/// Effects of a file's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Said {
    /// Line endings may be converted. This affects only contents with `\r`.
    pub(super) of_lines: bool,
    /// The comparison may be special.
    pub(super) of_diff: bool,
}

/// The attributes of a repository, read on demand.
pub(super) struct Attributes<'a> {
    top: &'a Folder,
    index: &'a Index,
    /// Lines of `info/attributes`.
    own: Vec<Line>,
    /// Lines of each folder's `.gitattributes`.
    folders: HashMap<Vec<u8>, Arc<Vec<Line>>>,
}

/// A pattern and its effects; `None` if their evaluation is left to git.
#[derive(Debug)]
struct Line {
    pattern: Pattern,
    said: Option<Said>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(top: &'a Folder, index: &'a Index, own: &[u8]) -> Option<Self> {
        Some(Self { top, index, own: lines(own)?, folders: HashMap::new() })
    }

    /// The effects for a file. `None` if git might convert its content.
    pub(super) fn of(&mut self, path: &[u8]) -> Option<Said> {
        let mut said = Said::default();
        let mut add = |lines: &[Line], folder: usize| {
            for line in lines.iter().filter(|line| line.pattern.means(&path[folder..], false)) {
                let more = line.said?;
                said.of_lines |= more.of_lines;
                said.of_diff |= more.of_diff;
            }
            Some(())
        };
        add(&self.own, 0)?;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
        for folder in std::iter::once(0).chain(ends) {
            let lines = match self.folders.get(&path[..folder]) {
                Some(known) => Arc::clone(known),
                None => {
                    let lines = Arc::new(self.folder(&path[..folder])?);
                    self.folders.insert(path[..folder].to_vec(), Arc::clone(&lines));
                    lines
                }
            };
            add(&lines, folder)?;
        }
        Some(said)
    }

    fn folder(&self, folder: &[u8]) -> Option<Vec<Line>> {
        let path = [folder, NAME].concat();
        match self.top.small(&path, LONGEST)? {
            Some(text) => lines(&text),
            // Git would use the version in the index instead.
            None => self.index.find(&path).is_none().then(Vec::new),
        }
    }
}

fn lines(text: &[u8]) -> Option<Vec<Line>> {
    let blank = |byte: &u8| b" \t\r".contains(byte);
    if text.contains(&0) || text.starts_with(b"\xef\xbb\xbf") {
        return None;
    }
    let mut lines = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.split(blank).filter(|word| !word.is_empty());
        let Some(pattern) = words.next().filter(|word| !word.starts_with(b"#")) else { continue };
        // A quoted pattern, a macro definition, or a pattern that git does not allow.
        if pattern.starts_with(b"\"")
            || pattern.starts_with(b"[attr]")
            || pattern.starts_with(b"!")
            || line.len() > LONGEST_LINE
        {
            return None;
        }
        let said = words.map(meaning).collect::<Option<Vec<_>>>().map(|all| Said {
            of_lines: all.iter().any(|said| said.of_lines),
            of_diff: all.iter().any(|said| said.of_diff),
        });
        lines.push(Line { pattern: Pattern::parse(pattern)?, said });
        if lines.len() > MOST_LINES {
            return None;
        }
    }
    Some(lines)
}

/// The effects of one attribute; `None` for those that convert contents, and for unknown ones.
fn meaning(word: &[u8]) -> Option<Said> {
    let name = word.split(|byte| *byte == b'=').next()?;
    let name = name.strip_prefix(b"-").or_else(|| name.strip_prefix(b"!")).unwrap_or(name);
    let said = Said::default();
    match name {
        b"text" | b"eol" | b"crlf" => Some(Said { of_lines: true, ..said }),
        b"diff" => Some(Said { of_diff: true, ..said }),
        b"binary" => Some(Said { of_lines: true, of_diff: true }),
        b"merge" | b"whitespace" | b"export-ignore" | b"export-subst" | b"delta" => Some(said),
        name if name.starts_with(b"linguist-") => Some(said),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_a_content_is_left_to_git_where_it_is_said_of_it() {
        let said = |text: &str, path: &str| {
            let lines = lines(text.as_bytes())?;
            let all = lines.iter().filter(|line| line.pattern.means(path.as_bytes(), false));
            all.map(|line| line.said).collect::<Option<Vec<_>>>()
        };
        let (nothing, text) = (Said::default(), Said { of_lines: true, of_diff: false });
        assert_eq!(
            said("# x\n\n* text=auto\n*.a linguist-language=C -merge\r\n", "x.a").unwrap(),
            [text, nothing]
        );
        assert_eq!(said("*.bin filter=lfs -text\n*.c eol=lf\n", "x.c").unwrap(), [text]);
        assert!(said("*.bin filter=lfs\n", "x.bin").is_none());
        assert!(said("*.c ident\n", "d/x.c").is_none());
        assert!(said("/d/*.c working-tree-encoding=UTF-16\n", "d/x.c").is_none());
        for odd in ["[attr]x filter=y", "\"a b\" text", "!a text", "[a text"] {
            assert!(lines(odd.as_bytes()).is_none(), "{odd}");
        }
        assert!(said("*.c diff=cpp", "x.c").unwrap()[0].of_diff);
    }
}
