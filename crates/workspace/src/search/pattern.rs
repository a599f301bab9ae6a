//! Patterns: globs and regular expressions over paths.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use globset::GlobBuilder;
use regex::bytes::{Regex, RegexBuilder};
use skep_api::files::PatternSyntax;

use crate::Error;

/// What a compiled pattern may take of memory, in bytes.
pub(super) const COMPILED_BYTES: usize = 8 << 20;

/// A pattern over the path below the root of a search.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Over the last name alone.
    Name(Box<Regex>),
    Path(Box<Regex>),
}

impl Pattern {
    /// Reads a pattern, and tells how it was read.
    pub(super) fn read(text: &str, syntax: PatternSyntax) -> Result<(Self, PatternSyntax), Error> {
        let refused = |reason: String| Error::InvalidPattern { field: "pattern", reason };
        let syntax = match syntax {
            PatternSyntax::Auto if is_regex(text) => PatternSyntax::Regex,
            PatternSyntax::Auto => PatternSyntax::Glob,
            named => named,
        };
        let pattern = if syntax == PatternSyntax::Regex {
            let regex = RegexBuilder::new(text).size_limit(COMPILED_BYTES).build();
            Self::Path(Box::new(regex.map_err(|error| refused(format!("is no regex: {error}")))?))
        } else {
            Self::glob(text).map_err(|reason| refused(format!("is no glob: {reason}")))?
        };
        Ok((pattern, syntax))
    }

    /// A glob: over names where it has no `/`, else over the whole path. Or what is wrong with it.
    pub(super) fn glob(text: &str) -> Result<Self, String> {
        let below = text.trim_start_matches('/');
        let glob = GlobBuilder::new(below).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|error| error.to_string())?;
        // The library's own matcher panics where a glob becomes too large a regex.
        let regex =
            RegexBuilder::new(glob.regex()).dot_matches_new_line(true).size_limit(COMPILED_BYTES).build();
        let regex = Box::new(regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("it would take more than {limit} bytes of memory"),
            other => other.to_string(),
        })?);
        Ok(if text.contains('/') { Self::Path(regex) } else { Self::Name(regex) })
    }

    /// Whether the path of something below the root of the search matches.
    pub(super) fn matches(&self, below: &Path) -> bool {
        match self {
            Self::Name(regex) => regex.is_match(below.file_name().unwrap_or(OsStr::new("")).as_bytes()),
            Self::Path(regex) => regex.is_match(below.as_os_str().as_bytes()),
        }
    }
}

/// Whether a pattern is taken for a regex where nobody says what it is.
fn is_regex(text: &str) -> bool {
    text.contains(['\\', '^', '$', '(', '|', '+']) || text.starts_with(".*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(text: &str, syntax: PatternSyntax, path: &str) -> bool {
        Pattern::read(text, syntax).unwrap().0.matches(Path::new(path))
    }

    #[test]
    fn globs_are_over_names_or_paths() {
        let glob = PatternSyntax::Glob;
        for (pattern, path, wanted) in [
            ("*.rs", "src/main.rs", true),
            ("*.rs", "src/main.rs/other", false),
            ("src/*.rs", "src/main.rs", true),
            ("src/*.rs", "src/deep/main.rs", false),
            ("src/**", "src/deep/main.rs", true),
            ("**/main.rs", "main.rs", true),
            ("{a,b}?", "x/b1", true),
            ("/src/main.rs", "src/main.rs", true),
            ("[!a]", "b", true),
        ] {
            assert_eq!(matches(pattern, glob, path), wanted, "{pattern} {path}");
        }
    }

    #[test]
    fn what_a_pattern_is_shows_in_it() {
        for (text, syntax) in [
            ("*.rs", PatternSyntax::Glob),
            ("a.b", PatternSyntax::Glob),
            (".*\\.rs", PatternSyntax::Regex),
            (".*", PatternSyntax::Regex),
            ("^src", PatternSyntax::Regex),
            ("a|b", PatternSyntax::Regex),
            ("main[.]rs$", PatternSyntax::Regex),
        ] {
            assert_eq!(Pattern::read(text, PatternSyntax::Auto).unwrap().1, syntax, "{text}");
        }
        assert!(matches("^src/.*rs$", PatternSyntax::Auto, "src/deep/main.rs"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (text, syntax) in
            [("[", PatternSyntax::Glob), ("(", PatternSyntax::Auto), ("a{99999}{9999}", PatternSyntax::Regex)]
        {
            assert!(Pattern::read(text, syntax).is_err(), "{text}");
        }
    }
}
