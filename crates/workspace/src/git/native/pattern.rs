//! Path patterns of gitignore(5) and gitattributes(5).

use regex::bytes::{Regex, RegexBuilder};

/// Memory limit of a compiled pattern, in bytes. Larger ones are left to git.
const MAX_REGEX_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Pattern {
    form: Form,
    folders_only: bool,
    /// Matches against the last component of a path instead of the whole path.
    matches_name_only: bool,
}

#[derive(Debug)]
enum Form {
    Exactly(Vec<u8>),
    EndsWith(Vec<u8>),
    Regex(Regex),
}

impl Pattern {
    /// `None` if its evaluation is left to git.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (text, folders) = text.strip_suffix(b"/").map_or((text, false), |text| (text, true));
        let name_alone = !text.contains(&b'/');
        let text = text.strip_prefix(b"/").unwrap_or(text);
        let special = |byte: &u8| b"*?[\\".contains(byte);
        let form = match text.strip_prefix(b"*") {
            _ if !text.iter().any(special) => Form::Exactly(text.into()),
            Some(end) if name_alone && !end.iter().any(special) => Form::EndsWith(end.into()),
            _ => Form::Regex(compile(text)?),
        };
        Some(Self { form, folders_only: folders, matches_name_only: name_alone })
    }

    /// Whether it uses a regular expression, which takes memory.
    pub(super) fn is_compiled(&self) -> bool {
        matches!(self.form, Form::Regex(_))
    }

    /// Whether it matches this path, which is relative to the folder of the pattern's file.
    pub(super) fn is_match(&self, path: &[u8], is_folder: bool) -> bool {
        if self.folders_only && !is_folder {
            return false;
        }
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..]);
        let text = if self.matches_name_only { name } else { path };
        match &self.form {
            Form::Exactly(pattern) => text == pattern,
            Form::EndsWith(end) => text.ends_with(end),
            Form::Regex(regex) => regex.is_match(text),
        }
    }
}

/// Compiles a glob. `*` matches within a name; `**` as a whole path component matches any number of folders.
fn compile(text: &[u8]) -> Option<Regex> {
    let mut regex = String::from("^");
    let mut rest = text;
    let mut begins = true;
    while let Some((byte, behind)) = rest.split_first() {
        let whole = rest;
        rest = behind;
        match byte {
            b'*' if whole.starts_with(b"**") => {
                if !begins {
                    return None;
                }
                match &whole[2..] {
                    [] => {
                        regex.push_str(".+");
                        rest = &[];
                    }
                    [b'/', behind @ ..] => {
                        regex.push_str("(?:.*/)?");
                        rest = behind;
                        continue;
                    }
                    _ => return None,
                }
            }
            b'*' => regex.push_str("[^/]*"),
            b'?' => regex.push_str("[^/]"),
            b'[' => rest = compile_class(behind, &mut regex)?,
            b'\\' => {
                let (byte, behind) = behind.split_first().filter(|(byte, _)| byte.is_ascii_punctuation())?;
                push_literal(*byte, &mut regex);
                rest = behind;
            }
            byte => push_literal(*byte, &mut regex),
        }
        begins = *byte == b'/';
    }
    regex.push('$');
    let mut builder = RegexBuilder::new(&regex);
    builder
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_BYTES);
    builder.build().ok()
}

/// Compiles a character class of plain characters and ranges of letters or digits. Returns the rest of the text.
fn compile_class<'a>(text: &'a [u8], regex: &mut String) -> Option<&'a [u8]> {
    let end = text.iter().position(|byte| *byte == b']')?;
    let (inside, rest) = (&text[..end], &text[end + 1..]);
    let (inside, not) = match inside {
        [b'!' | b'^', inside @ ..] => (inside, true),
        inside => (inside, false),
    };
    regex.push_str(if not { "[^/" } else { "[" });
    let mut ahead = inside;
    while let Some((byte, behind)) = ahead.split_first() {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._ ~+,=@#%".contains(byte);
        match behind {
            [b'-', last, behind @ ..] => {
                let both = |kind: fn(&u8) -> bool| kind(byte) && kind(last);
                let alike =
                    both(u8::is_ascii_digit) || both(u8::is_ascii_lowercase) || both(u8::is_ascii_uppercase);
                if !alike || byte > last {
                    return None;
                }
                regex.extend([char::from(*byte), '-', char::from(*last)]);
                ahead = behind;
            }
            _ if plain(byte) => {
                push_literal(*byte, regex);
                ahead = behind;
            }
            _ => return None,
        }
    }
    regex.push(']');
    (!inside.is_empty()).then_some(rest)
}

fn push_literal(byte: u8, regex: &mut String) {
    use std::fmt::Write;

    if byte.is_ascii_alphanumeric() {
        regex.push(char::from(byte));
    } else {
        let _ = write!(regex, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_classes_and_folders_mean_what_git_says() {
        for (pattern, path, is_folder, means) in [
            ("a", "x/a", false, true),
            ("/a", "x/a", false, false),
            ("a/", "a", false, false),
            ("a/", "x/a", true, true),
            ("*.o", "x/.o", false, true),
            ("x/*.o", "x/a.o", false, true),
            ("x/*.o", "x/y/a.o", false, false),
            ("**/a", "a", false, true),
            ("x/**/a", "x/a", false, true),
            ("x/**/a", "x/y/z/a", false, true),
            ("x/**", "x", true, false),
            ("x/**", "x/y/z", false, true),
            ("[a-c]?", "bé", false, false),
            ("[!a]b", "xb", false, true),
            ("x[!a]b", "x/b", false, false),
            ("\\*", "*", false, true),
            ("a*b", "a\nb", false, true),
        ] {
            let parsed = Pattern::parse(pattern.as_bytes()).unwrap();
            assert_eq!(parsed.is_match(path.as_bytes(), is_folder), means, "{pattern} {path}");
        }
    }

    /// A matcher that backtracks takes seconds for 24 repetitions and twice as long for each further one.
    #[test]
    fn a_pattern_that_makes_backtracking_exponential_is_matched_at_once() {
        let pattern = Pattern::parse(["**/a/".repeat(48).as_bytes(), b"b"].concat().as_slice()).unwrap();
        let folders = "a/".repeat(100);
        assert!(!pattern.is_match(format!("{folders}c").as_bytes(), false));
        assert!(pattern.is_match(format!("{folders}b").as_bytes(), false));
    }

    #[test]
    fn special_patterns_are_left_to_git() {
        for odd in ["a**/b", "***", "**a", "[[:alpha:]]", "[a\\]]", "[]a]", "[a", "a\\", "[z-a]", "[a-]"] {
            assert!(Pattern::parse(odd.as_bytes()).is_none(), "{odd}");
        }
        let many = "*a".repeat(10_000);
        assert!(Pattern::parse(many.as_bytes()).is_none_or(|pattern| !pattern.is_match(b"b", false)));
    }
}
