//! Decides which files are ignored (gitignore(5)).

use std::sync::Arc;

use super::pattern::Pattern;

/// Limit of patterns per file.
const MAX_PATTERNS: usize = 2_000;
/// Limit of compiled patterns, of a folder and those above it.
const MAX_COMPILED: usize = 400;

/// The patterns for a folder, linked to those of the folders above, which have lower precedence.
#[derive(Debug)]
pub(super) struct IgnoreRules {
    /// The flag is set for a negated pattern (`!`).
    patterns: Vec<(Pattern, bool)>,
    /// Length of the folder's path with its final slash.
    folder_length: usize,
    /// Number of compiled patterns, including the folders above.
    compiled: usize,
    above: Option<Arc<IgnoreRules>>,
}

impl IgnoreRules {
    /// Parses the file of patterns of a folder. `None` if its rules are left to git.
    pub(super) fn parse(text: &[u8], folder: usize, above: Option<Arc<Self>>) -> Option<Self> {
        if text.contains(&0) {
            return None;
        }
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut patterns = Vec::new();
        let mut compiled = above.as_ref().map_or(0, |above| above.compiled);
        for line in text.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // Escaped final blanks are left to git.
            if line.ends_with(b"\\") || line.windows(2).any(|pair| pair == b"\\ ") {
                return None;
            }
            let end = line.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
            let line = &line[..end];
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (line, kept) = line.strip_prefix(b"!").map_or((line, false), |line| (line, true));
            let pattern = Pattern::parse(line)?;
            compiled += usize::from(pattern.is_compiled());
            patterns.push((pattern, kept));
            if patterns.len() > MAX_PATTERNS || compiled > MAX_COMPILED {
                return None;
            }
        }
        Some(Self { patterns, folder_length: folder, compiled, above })
    }

    /// Whether the entry at a path is ignored, provided that no folder above it is.
    pub(super) fn is_ignored(&self, path: &[u8], is_folder: bool) -> bool {
        let mut here = Some(self);
        while let Some(rules) = here {
            let below = path.get(rules.folder_length..).unwrap_or_default();
            // The last matching pattern decides.
            let fits = |(pattern, _): &&(Pattern, bool)| pattern.is_match(below, is_folder);
            if let Some((_, kept)) = rules.patterns.iter().rev().find(fits) {
                return !kept;
            }
            here = rules.above.as_deref();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, process::Command};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_match_in_the_nearest_folder_wins() {
        let rules =
            |text: &str, folder, above| Arc::new(IgnoreRules::parse(text.as_bytes(), folder, above).unwrap());
        let top = rules("*.o\n!keep.o\n# x\n\n/build/  \n", 0, None);
        let below = rules("!a.o\n/b\n", 2, Some(Arc::clone(&top)));
        assert!(top.is_ignored(b"a.o", false) && !top.is_ignored(b"keep.o", false));
        assert!(
            top.is_ignored(b"build", true)
                && !top.is_ignored(b"build", false)
                && !top.is_ignored(b"x/build", true)
        );
        assert!(
            !below.is_ignored(b"d/a.o", false)
                && below.is_ignored(b"d/b.o", false)
                && below.is_ignored(b"d/b", true)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// Parsed patterns mean the same as in git.
        #[test]
        fn patterns_mean_what_git_says(
            lines in prop::collection::vec("(!|/)?([ab.*?]|\\*\\*|\\*\\*/|/\\*\\*|/|\\[a-b\\]|\\[!a\\]|\\[\\^b\\]|\\\\[*a!]|!|#){1,5} {0,2}", 1..5),
        ) {
            let text = lines.join("\n");
            let rules = IgnoreRules::parse(text.as_bytes(), 0, None);
            prop_assume!(rules.is_some());
            let rules = rules.unwrap();
            let folder = tempfile::tempdir().unwrap();
            let git = |arguments: &[&str], input: &str| {
                let mut git = Command::new("git");
                git.args(arguments).current_dir(&folder).env_clear().env("PATH", "/usr/bin:/bin");
                git.env("HOME", "/nonexistent").env("GIT_CONFIG_NOSYSTEM", "1");
                git.stdin(fs::File::open(input).unwrap()).output().unwrap()
            };
            assert!(git(&["init", "-q"], "/dev/null").status.success());
            fs::write(folder.path().join(".gitignore"), &text).unwrap();
            // Only names at the top, because this does not test ignored parent folders.
            let names = ["a", "b", "ab", "ba", "a.b", ".a", "aa", "*", "!", "#", "abab"];
            for name in names {
                fs::write(folder.path().join(name), "").unwrap();
                fs::create_dir(folder.path().join(format!("{name}d"))).unwrap();
                fs::write(folder.path().join(format!("{name}d/a")), "").unwrap();
            }
            // All paths are one question, because most of the time goes to the start of git.
            let of_name = |name: &&str| [(*name).to_owned(), format!("{name}d"), format!("{name}d/a")];
            let paths: Vec<String> = names.iter().flat_map(of_name).collect();
            let input = folder.path().join(".git/paths");
            fs::write(&input, paths.join("\0")).unwrap();
            let answer = git(&["check-ignore", "-z", "--stdin", "--no-index"], input.to_str().unwrap());
            prop_assert!(matches!(answer.status.code(), Some(0 | 1)), "{:?}", answer);
            let ignored = std::str::from_utf8(&answer.stdout).unwrap();
            let ignored: BTreeSet<&str> = ignored.split_terminator('\0').collect();
            for name in names {
                let file = ignored.contains(name);
                prop_assert_eq!(rules.is_ignored(name.as_bytes(), false), file, "{:?} {}", text, name);
                let inner = format!("{name}d");
                let whole = ignored.contains(inner.as_str());
                prop_assert_eq!(rules.is_ignored(inner.as_bytes(), true), whole, "{:?} {}/", text, inner);
                let below = format!("{inner}/a");
                let either = whole || rules.is_ignored(below.as_bytes(), false);
                prop_assert_eq!(either, ignored.contains(below.as_str()), "{:?} {}", text, below);
            }
        }
    }
}
