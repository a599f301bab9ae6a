//! Globs and regular expressions that match paths.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use globset::GlobBuilder;
use regex::bytes::{Regex, RegexBuilder};
use skep_api::files::PatternSyntax;

use crate::Error;

/// The memory limit of a compiled pattern, in bytes.
pub(super) const COMPILED_BYTES: usize = 8 << 20;

/// A pattern for paths relative to the folder of a search.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Matches only the last component.
    Name(Box<Regex>),
    Path(Box<Regex>),
}

impl Pattern {
    /// Parses a pattern, and returns the syntax that was detected or given.
    pub(super) fn parse(text: &str, syntax: PatternSyntax) -> Result<(Self, PatternSyntax), Error> {
        let refused = |reason: String| Error::InvalidPattern { field: "pattern", reason };
        let syntax = match syntax {
            PatternSyntax::Auto if is_regex(text) => PatternSyntax::Regex,
            PatternSyntax::Auto => PatternSyntax::Glob,
            named => named,
        };
        let pattern = if syntax == PatternSyntax::Regex {
            let regex = RegexBuilder::new(text).size_limit(COMPILED_BYTES).build();
            Self::Path(Box::new(regex.map_err(|error| refused(format!("is not a valid regex: {error}")))?))
        } else {
            Self::glob(text).map_err(|reason| refused(format!("is not a valid glob: {reason}")))?
        };
        Ok((pattern, syntax))
    }

    /// Parses a glob. Without a `/` it matches the last component, otherwise the whole path. The error is the reason.
    pub(super) fn glob(text: &str) -> Result<Self, String> {
        let below = text.trim_start_matches('/');
        let glob = GlobBuilder::new(below).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|error| error.to_string())?;
        // The matcher of `globset` panics if the regex of a glob is too large.
        let regex =
            RegexBuilder::new(glob.regex()).dot_matches_new_line(true).size_limit(COMPILED_BYTES).build();
        let regex = Box::new(regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("it would take more than {limit} bytes of memory"),
            other => other.to_string(),
        })?);
        Ok(if text.contains('/') { Self::Path(regex) } else { Self::Name(regex) })
    }

    /// Whether the relative path of an entry matches.
    pub(super) fn matches(&self, below: &Path) -> bool {
        match self {
            Self::Name(regex) => regex.is_match(below.file_name().unwrap_or(OsStr::new("")).as_bytes()),
            Self::Path(regex) => regex.is_match(below.as_os_str().as_bytes()),
        }
    }
}

/// Guesses whether a pattern without a given syntax is a regex.
fn is_regex(text: &str) -> bool {
    text.contains(['\\', '^', '$', '(', '|', '+']) || text.starts_with(".*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(text: &str, syntax: PatternSyntax, path: &str) -> bool {
        Pattern::parse(text, syntax).unwrap().0.matches(Path::new(path))
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
    fn the_syntax_of_a_pattern_is_detected() {
        for (text, syntax) in [
            ("*.rs", PatternSyntax::Glob),
            ("a.b", PatternSyntax::Glob),
            (".*\\.rs", PatternSyntax::Regex),
            (".*", PatternSyntax::Regex),
            ("^src", PatternSyntax::Regex),
            ("a|b", PatternSyntax::Regex),
            ("main[.]rs$", PatternSyntax::Regex),
        ] {
            assert_eq!(Pattern::parse(text, PatternSyntax::Auto).unwrap().1, syntax, "{text}");
        }
        assert!(matches("^src/.*rs$", PatternSyntax::Auto, "src/deep/main.rs"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (text, syntax) in
            [("[", PatternSyntax::Glob), ("(", PatternSyntax::Auto), ("a{99999}{9999}", PatternSyntax::Regex)]
        {
            assert!(Pattern::parse(text, syntax).is_err(), "{text}");
        }
    }
}
