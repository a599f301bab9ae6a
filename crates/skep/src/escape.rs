//! Escapes untrusted text for a terminal.

use std::borrow::Cow;

/// Keeps line ends and tabs; for text of several lines.
pub(crate) const MULTI_LINE: &[char] = &['\n', '\t'];
/// Keeps tabs; for one line.
pub(crate) const SINGLE_LINE: &[char] = &['\t'];
/// Keeps nothing; for a table cell or a field of a log line.
pub(crate) const FIELD: &[char] = &[];

/// Escapes as `\u{..}`, except for the characters in `keep`: C0 and C1 control characters (and so every escape
/// sequence), bidirectional controls, and the separators that some terminals treat as line ends.
pub(crate) fn escaped<'text>(text: &'text str, keep: &[char]) -> Cow<'text, str> {
    replace_unsafe(text, keep, |steering, into| into.extend(steering.escape_default()))
}

/// Escapes the same characters in JSON text. Its meaning is unchanged, as they can occur only in strings.
pub(crate) fn escaped_json(text: &str) -> Cow<'_, str> {
    replace_unsafe(text, MULTI_LINE, |steering, into| {
        let mut units = [0; 2];
        for unit in steering.encode_utf16(&mut units) {
            into.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

fn replace_unsafe<'text>(
    text: &'text str,
    keep: &[char],
    replace: impl Fn(char, &mut String),
) -> Cow<'text, str> {
    let is_replaced = |c: char| needs_escape(c) && !keep.contains(&c);
    if !text.contains(is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_replaced(c) { replace(c, &mut shown) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, shown) in [
            ("plain ü 漢字 \u{1f600}", "plain ü 漢字 \u{1f600}"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("a\rb\nc\td", "a\\rb\nc\td"),
            ("\u{202e}gnp.exe\u{2066}", "\\u{202e}gnp.exe\\u{2066}"),
        ] {
            assert_eq!(escaped(text, MULTI_LINE), shown);
        }
        assert_eq!(escaped("a\nb\tc", SINGLE_LINE), "a\\nb\tc");
        assert_eq!(escaped("a\nb\tc", FIELD), "a\\nb\\tc");
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let value = serde_json::json!({"name": "\u{9b}31m\u{7f}\u{202e}\u{1b}[2Jx\n"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = escaped_json(&text);
        assert!(shown.chars().all(|c| !needs_escape(c) || c == '\n'), "{shown:?}");
        assert_ne!(shown, text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
