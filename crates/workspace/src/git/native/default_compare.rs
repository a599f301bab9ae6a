//! Decides whether the config changes how files are compared.

use super::Reader;
use crate::git::config::ConfigEntry;

/// Sections that do not affect comparisons.
const UNRELATED_SECTIONS: [&[u8]; 21] = [
    b"user.",
    b"author.",
    b"committer.",
    b"remote.",
    b"branch.",
    b"gc.",
    b"maintenance.",
    b"pull.",
    b"push.",
    b"fetch.",
    b"receive.",
    b"pack.",
    b"commit.",
    b"tag.",
    b"init.",
    b"alias.",
    b"color.",
    b"advice.",
    b"credential.",
    b"http.",
    b"rerere.",
];
/// Keys that are overridden for our git commands, or that do not affect comparisons.
const IGNORED_KEYS: [&[u8]; 16] = [
    b"core.repositoryformatversion",
    b"core.logallrefupdates",
    b"core.hookspath",
    b"core.fsmonitor",
    b"core.untrackedcache",
    b"core.pager",
    b"core.editor",
    b"core.askpass",
    b"core.sshcommand",
    b"core.attributesfile",
    b"core.excludesfile",
    b"core.quotepath",
    b"core.commentchar",
    b"core.preloadindex",
    b"core.compression",
    b"core.sharedrepository",
];
/// Values that `git init` writes on a file system with all features that git uses.
const DEFAULTS: [(&[u8], &[u8]); 6] = [
    (b"core.filemode", b"true"),
    (b"core.symlinks", b"true"),
    (b"core.bare", b"false"),
    (b"core.ignorecase", b"false"),
    (b"core.autocrlf", b"false"),
    (b"core.precomposeunicode", b"false"),
];

impl Reader<'_> {
    /// Succeeds if the config leaves comparisons at git's defaults.
    pub(super) fn uses_default_comparison(&self) -> Option<()> {
        self.repository.config.iter().all(keeps_default).then_some(())
    }
}

fn keeps_default(own: &ConfigEntry) -> bool {
    let value = own.value.as_deref();
    UNRELATED_SECTIONS.iter().any(|section| own.key.starts_with(section))
        || IGNORED_KEYS.contains(&own.key.as_slice())
        || DEFAULTS.iter().any(|(key, default)| own.key == *key && value == Some(*default))
}
