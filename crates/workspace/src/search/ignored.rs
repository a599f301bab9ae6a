//! Excludes paths that match `.ignore`, `.gitignore` and `.git/info/exclude` from a search (gitignore(5)).
//!
//! The reader of the `ignore` crate is not used: it reads these files whole, opens them by path and follows links.
//! Here they are opened below the folder of the search, and limits apply to what is read, compiled and cached.

use std::{
    collections::HashMap,
    io::Read,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::open::open;

/// The longest pattern file, and the total length of the patterns that apply in one folder, in bytes. A file beyond
/// the limit is skipped.
const MAX_PATTERN_BYTES: usize = 64 << 10;
/// The most patterns that apply in one folder.
const MAX_PATTERNS: usize = 2_000;
/// The most folders in the cache, and the most of them with compiled patterns of their own. The cache is cleared when
/// a limit is exceeded.
const MAX_CACHED_FOLDERS: usize = 4_096;
const MAX_COMPILED: usize = 4;

/// The pattern files of a folder, by descending precedence. A match in one kind of file, in any folder, takes
/// precedence over the next kind.
const FILES: [&str; 3] = [".ignore", ".gitignore", ".git/info/exclude"];

/// The exclusions below the folder of a search.
pub(super) struct Ignored {
    top: OwnedFd,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    folders: HashMap<PathBuf, Rules>,
    compiled: usize,
}

/// The patterns of a folder, linked to those of its ancestors. Folders without patterns share those of the parent.
type Rules = Option<Arc<Patterns>>;

struct Patterns {
    folder: PathBuf,
    files: [Option<Gitignore>; FILES.len()],
    parent: Rules,
    /// Totals of this folder and its ancestors.
    bytes: usize,
    count: usize,
}

impl Ignored {
    pub(super) fn below(top: OwnedFd) -> Self {
        Self { top, cache: Mutex::default() }
    }

    /// Whether a path is excluded, given that its parents are not. The path is relative to the folder of the search.
    pub(super) fn contains(&self, below: &Path, is_folder: bool) -> bool {
        let rules = self.rules(below.parent().unwrap_or(Path::new("")));
        (0..FILES.len()).find_map(|file| verdict(&rules, file, below, is_folder)).unwrap_or(false)
    }

    fn rules(&self, folder: &Path) -> Rules {
        if let Some(known) = self.cache().folders.get(folder) {
            return known.clone();
        }
        let mut rules = None;
        let mut ancestors: Vec<_> = folder.ancestors().collect();
        ancestors.reverse();
        for ancestor in ancestors {
            let known = self.cache().folders.get(ancestor).cloned();
            rules = match known {
                Some(known) => known,
                None => {
                    let read = Patterns::read(&self.top, ancestor, rules);
                    self.cache().insert(ancestor, &read);
                    read
                }
            };
        }
        rules
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn insert(&mut self, folder: &Path, rules: &Rules) {
        let own = rules.as_ref().is_some_and(|patterns| patterns.folder == folder);
        if self.folders.len() >= MAX_CACHED_FOLDERS || self.compiled + usize::from(own) > MAX_COMPILED {
            *self = Self::default();
        }
        self.compiled += usize::from(own);
        self.folders.insert(folder.to_owned(), rules.clone());
    }
}

impl Patterns {
    fn read(top: &OwnedFd, folder: &Path, above: Rules) -> Rules {
        let (bytes, count) = above.as_ref().map_or((0, 0), |above| (above.bytes, above.count));
        let files = [None, None, None];
        let mut patterns = Self { folder: folder.to_owned(), files, parent: above.clone(), bytes, count };
        for (at, name) in FILES.iter().enumerate() {
            if let Some(text) = read_text(top, &folder.join(name), MAX_PATTERN_BYTES - patterns.bytes) {
                patterns.files[at] = patterns.compile(&text);
            }
        }
        if patterns.files.iter().any(Option::is_some) { Some(Arc::new(patterns)) } else { above }
    }

    fn compile(&mut self, text: &str) -> Option<Gitignore> {
        let count = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
        if count == 0 || self.count + count > MAX_PATTERNS {
            return None;
        }
        let mut builder = GitignoreBuilder::new(".");
        for line in text.lines() {
            // Invalid lines are ignored.
            let _ = builder.add_line(None, line);
        }
        let compiled = builder.build().ok()?;
        (self.bytes, self.count) = (self.bytes + text.len(), self.count + count);
        Some(compiled)
    }
}

/// Whether one kind of pattern file excludes a path. `None` if no pattern matches.
fn verdict(rules: &Rules, file: usize, below: &Path, is_folder: bool) -> Option<bool> {
    let mut here = rules.as_deref();
    while let Some(patterns) = here {
        let path = below.strip_prefix(&patterns.folder).unwrap_or(below);
        match patterns.files[file].as_ref().map_or(Match::None, |file| file.matched(path, is_folder)) {
            Match::None => here = patterns.parent.as_deref(),
            Match::Ignore(_) => return Some(true),
            Match::Whitelist(_) => return Some(false),
        }
    }
    None
}

/// Reads a file of at most `longest` bytes.
fn read_text(top: &OwnedFd, path: &Path, longest: usize) -> Option<String> {
    let file = open(top, path).ok()?;
    let mut bytes = Vec::new();
    file.take(longest as u64 + 1).read_to_end(&mut bytes).ok()?;
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    (bytes.len() <= longest).then(|| String::from_utf8_lossy(text).into_owned())
}
