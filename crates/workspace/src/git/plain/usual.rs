//! Whether anything in a repository's settings changes how its files are compared.

use super::Reader;
use crate::git::settings::Own;

/// Sections of people, remotes and histories.
const ELSEWHERE: [&[u8]; 21] = [
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
/// What a command of ours would overrule, or what changes nothing.
const OVERRULED: [&[u8]; 16] = [
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
/// What a repository says by itself when it is made, where it lies on a file system that knows all that git does.
const USUAL: [(&[u8], &[u8]); 6] = [
    (b"core.filemode", b"true"),
    (b"core.symlinks", b"true"),
    (b"core.bare", b"false"),
    (b"core.ignorecase", b"false"),
    (b"core.autocrlf", b"false"),
    (b"core.precomposeunicode", b"false"),
];

impl Reader<'_> {
    /// Whether files are compared as they are where nobody set anything.
    pub(super) fn compares_as_usual(&self) -> Option<()> {
        self.repository.own.iter().all(is_usual).then_some(())
    }
}

fn is_usual(own: &Own) -> bool {
    let value = own.value.as_deref();
    ELSEWHERE.iter().any(|section| own.key.starts_with(section))
        || OVERRULED.contains(&own.key.as_slice())
        || USUAL.iter().any(|(key, usual)| own.key == *key && value == Some(*usual))
}
