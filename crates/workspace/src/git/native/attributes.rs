//! Attributes of files (gitattributes(5)), as far as they decide whether git would convert or compare contents
//! specially.

use std::{collections::HashMap, sync::Arc};

use super::{folder::Folder, index::Index, pattern::Pattern};

/// Limit of a file of attributes, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Limit of a line, in bytes. Git ignores longer ones.
const MAX_LINE_BYTES: usize = 2_000;
/// Limit of lines per file.
const MAX_LINES: usize = 200;
const FILE_NAME: &[u8] = b".gitattributes";

/// Effects of a file's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Effects {
    /// Line endings may be converted. This affects only contents with `\r`.
    pub(super) line_endings: bool,
    /// The comparison may be special.
    pub(super) comparison: bool,
}

/// The attributes of a repository, read on demand.
pub(super) struct Attributes<'a> {
    top: &'a Folder,
    index: &'a Index,
    /// Lines of `info/attributes`.
    info_rules: Vec<Rule>,
    /// Lines of each folder's `.gitattributes`.
    folder_rules: HashMap<Vec<u8>, Arc<Vec<Rule>>>,
}

/// A pattern and its effects; `None` if their evaluation is left to git.
#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    effects: Option<Effects>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(top: &'a Folder, index: &'a Index, own: &[u8]) -> Option<Self> {
        Some(Self { top, index, info_rules: parse_rules(own)?, folder_rules: HashMap::new() })
    }

    /// The effects for a file. `None` if git might convert its content.
    pub(super) fn effects_for(&mut self, path: &[u8]) -> Option<Effects> {
        let mut effects = Effects::default();
        let mut add = |lines: &[Rule], folder: usize| {
            for line in lines.iter().filter(|line| line.pattern.is_match(&path[folder..], false)) {
                let more = line.effects?;
                effects.line_endings |= more.line_endings;
                effects.comparison |= more.comparison;
            }
            Some(())
        };
        add(&self.info_rules, 0)?;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
        for folder in std::iter::once(0).chain(ends) {
            let lines = match self.folder_rules.get(&path[..folder]) {
                Some(known) => Arc::clone(known),
                None => {
                    let lines = Arc::new(self.read_folder(&path[..folder])?);
                    self.folder_rules.insert(path[..folder].to_vec(), Arc::clone(&lines));
                    lines
                }
            };
            add(&lines, folder)?;
        }
        Some(effects)
    }

    fn read_folder(&self, folder: &[u8]) -> Option<Vec<Rule>> {
        let path = [folder, FILE_NAME].concat();
        match self.top.read_small(&path, MAX_FILE_BYTES)? {
            Some(text) => parse_rules(&text),
            // Git would use the version in the index instead.
            None => self.index.find(&path).is_none().then(Vec::new),
        }
    }
}

fn parse_rules(text: &[u8]) -> Option<Vec<Rule>> {
    let blank = |byte: &u8| b" \t\r".contains(byte);
    if text.contains(&0) || text.starts_with(b"\xef\xbb\xbf") {
        return None;
    }
    let mut lines = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.split(blank).filter(|word| !word.is_empty());
        let Some(pattern) = fields.next().filter(|word| !word.starts_with(b"#")) else { continue };
        // A quoted pattern, a macro definition, or a pattern that git does not allow.
        if pattern.starts_with(b"\"")
            || pattern.starts_with(b"[attr]")
            || pattern.starts_with(b"!")
            || line.len() > MAX_LINE_BYTES
        {
            return None;
        }
        let effects = fields.map(attribute_effects).collect::<Option<Vec<_>>>().map(|all| Effects {
            line_endings: all.iter().any(|effects| effects.line_endings),
            comparison: all.iter().any(|effects| effects.comparison),
        });
        lines.push(Rule { pattern: Pattern::parse(pattern)?, effects });
        if lines.len() > MAX_LINES {
            return None;
        }
    }
    Some(lines)
}

/// The effects of one attribute; `None` for those that convert contents, and for unknown ones.
fn attribute_effects(word: &[u8]) -> Option<Effects> {
    let name = word.split(|byte| *byte == b'=').next()?;
    let name = name.strip_prefix(b"-").or_else(|| name.strip_prefix(b"!")).unwrap_or(name);
    let effects = Effects::default();
    match name {
        b"text" | b"eol" | b"crlf" => Some(Effects { line_endings: true, ..effects }),
        b"diff" => Some(Effects { comparison: true, ..effects }),
        b"binary" => Some(Effects { line_endings: true, comparison: true }),
        b"merge" | b"whitespace" | b"export-ignore" | b"export-subst" | b"delta" => Some(effects),
        name if name.starts_with(b"linguist-") => Some(effects),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_convert_contents_are_left_to_git() {
        let effects = |text: &str, path: &str| {
            let lines = parse_rules(text.as_bytes())?;
            let all = lines.iter().filter(|line| line.pattern.is_match(path.as_bytes(), false));
            all.map(|line| line.effects).collect::<Option<Vec<_>>>()
        };
        let (nothing, text) = (Effects::default(), Effects { line_endings: true, comparison: false });
        assert_eq!(
            effects("# x\n\n* text=auto\n*.a linguist-language=C -merge\r\n", "x.a").unwrap(),
            [text, nothing]
        );
        assert_eq!(effects("*.bin filter=lfs -text\n*.c eol=lf\n", "x.c").unwrap(), [text]);
        assert!(effects("*.bin filter=lfs\n", "x.bin").is_none());
        assert!(effects("*.c ident\n", "d/x.c").is_none());
        assert!(effects("/d/*.c working-tree-encoding=UTF-16\n", "d/x.c").is_none());
        for odd in ["[attr]x filter=y", "\"a b\" text", "!a text", "[a text"] {
            assert!(parse_rules(odd.as_bytes()).is_none(), "{odd}");
        }
        assert!(effects("*.c diff=cpp", "x.c").unwrap()[0].comparison);
    }
}
