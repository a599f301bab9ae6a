//! Reads references: branches, tags and `HEAD`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use rustix::fs::FileType;

use super::{Id, Reader, commit::tagged, objects::Kind};
use crate::{Error, roots::Last};

/// Limit of the file of packed references, in bytes.
const LONGEST_PACKED: u64 = 16 << 20;
/// Limit of a reference's file, in bytes.
const LONGEST: u64 = 1 << 10;
/// Limit of references in a listing.
const MOST: usize = 20_000;
/// Limit of nested folders, symbolic references and tags of tags.
const DEEPEST: usize = 8;
/// References that are separate for each work tree.
const OF_A_WORK_TREE: [&str; 5] =
    ["refs/bisect", "refs/worktree", "refs/rewritten", "refs/main-worktree", "refs/worktrees"];

/// What `HEAD` refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// A branch and its commit; `None` before the first one.
    Branch(String, Option<Id>),
    Detached(Id),
}

/// Content of a reference's file.
enum Says {
    Nothing,
    Id(Id),
    Other(String),
}

impl Reader<'_> {
    pub(super) fn head(&mut self) -> Option<Head> {
        match self.file(&self.repository.git_dir.join("HEAD"))? {
            Says::Id(id) => Some(Head::Detached(id)),
            Says::Other(name) => {
                let branch = name.strip_prefix("refs/heads/")?.to_owned();
                Some(Head::Branch(branch, self.reference(&name)?))
            }
            Says::Nothing => None,
        }
    }

    /// Resolves a full reference name. The inner `Option` is `None` if the reference does not exist.
    pub(super) fn reference(&mut self, name: &str) -> Option<Option<Id>> {
        let mut name = name.to_owned();
        for _ in 0..DEEPEST {
            let plain = is_plain(&name) && name.starts_with("refs/");
            if !plain || OF_A_WORK_TREE.iter().any(|own| name.starts_with(own)) {
                return None;
            }
            match self.file(&self.repository.common_dir.join(&name))? {
                Says::Id(id) => return Some(Some(id)),
                Says::Other(next) => name = next,
                Says::Nothing => return Some(self.packed()?.get(&name).copied()),
            }
        }
        None
    }

    /// Resolves a revision to a commit. Only hashes and names of references are supported.
    pub(super) fn revision(&mut self, text: &str) -> Option<Id> {
        if let Some(id) = Id::parse(text.as_bytes()) {
            return self.peeled(id);
        }
        if text == "HEAD" {
            return match self.head()? {
                Head::Branch(_, id) => id,
                Head::Detached(id) => self.peeled(id),
            };
        }
        if text.starts_with("refs/") {
            let id = self.reference(text)??;
            return self.peeled(id);
        }
        // Git first looks for a file with this name in the git directory.
        if !is_plain(text) || self.is_in_git_dir(text)? {
            return None;
        }
        for named in meanings(text) {
            if let Some(id) = self.reference(&named)? {
                return self.peeled(id);
            }
        }
        None
    }

    /// The short name of an upstream, if it is unambiguous.
    pub(super) fn short<'n>(&mut self, whole: &'n str) -> Option<&'n str> {
        let short = whole.strip_prefix("refs/remotes/").or_else(|| whole.strip_prefix("refs/heads/"))?;
        if short.ends_with("/HEAD") || self.is_in_git_dir(short)? {
            return None;
        }
        for other in meanings(short).iter().filter(|other| *other != whole) {
            if self.reference(other)?.is_some() {
                return None;
            }
        }
        Some(short)
    }

    /// All references below a folder, by name. Symbolic ones are left out.
    pub(super) fn below(&mut self, folder: &str) -> Option<Vec<(String, Id)>> {
        let mut names = BTreeSet::new();
        self.loose(folder, 0, &mut names)?;
        let prefix = format!("{folder}/");
        let packed = self.packed()?.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
        names.extend(packed.map(|(name, _)| name.clone()));
        let mut all = Vec::new();
        for name in names {
            if !is_plain(&name) || all.len() == MOST {
                return None;
            }
            match self.file(&self.repository.common_dir.join(&name))? {
                Says::Id(id) => all.push((name, id)),
                Says::Other(_) => {}
                Says::Nothing => {
                    let id = *self.packed()?.get(&name)?;
                    all.push((name, id));
                }
            }
        }
        Some(all)
    }

    fn loose(&mut self, folder: &str, depth: usize, names: &mut BTreeSet<String>) -> Option<()> {
        self.go_on()?;
        let found = match self.roots.find(&self.repository.common_dir.join(folder), Last::Keep) {
            Err(Error::UnknownPath { .. }) => return Some(()),
            found => found.ok().filter(|found| found.is_directory() && depth < DEEPEST)?,
        };
        for entry in std::fs::read_dir(found.own_name()).ok()? {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let path = format!("{folder}/{name}");
            match entry.file_type().ok()? {
                kind if kind.is_dir() => self.loose(&path, depth + 1, names)?,
                // A lock file of a concurrent update.
                kind if kind.is_file() && name.ends_with(".lock") => {}
                kind if kind.is_file() => drop(names.insert(path)),
                _ => return None,
            }
            if names.len() > MOST {
                return None;
            }
        }
        Some(())
    }

    /// Parses the file of a reference.
    fn file(&self, path: &Path) -> Option<Says> {
        let found = match self.roots.find(path, Last::Keep) {
            Err(Error::UnknownPath { .. } | Error::ThroughAFile { .. }) => return Some(Says::Nothing),
            found => found.ok()?,
        };
        if found.is_directory() {
            return Some(Says::Nothing);
        }
        // A symbolic link would be another kind of symbolic reference.
        if found.kind() != FileType::RegularFile {
            return None;
        }
        let text = found.content(LONGEST).ok()?;
        let text = text.strip_suffix(b"\n")?;
        match text.strip_prefix(b"ref: ") {
            Some(name) => {
                Some(Says::Other(std::str::from_utf8(name).ok().filter(|name| is_plain(name))?.to_owned()))
            }
            None => Id::parse(text).map(Says::Id),
        }
    }

    fn packed(&mut self) -> Option<&BTreeMap<String, Id>> {
        if self.packed.is_none() {
            self.packed = Some(self.read_packed()?);
        }
        self.packed.as_ref()
    }

    fn read_packed(&self) -> Option<BTreeMap<String, Id>> {
        let mut all = BTreeMap::new();
        let found = match self.roots.find(&self.repository.common_dir.join("packed-refs"), Last::Follow) {
            Err(Error::UnknownPath { .. }) => return Some(all),
            found => found.ok()?,
        };
        let text = found.content(LONGEST_PACKED).ok()?;
        if text.len() as u64 == LONGEST_PACKED || !(text.is_empty() || text.ends_with(b"\n")) {
            return None;
        }
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            // `#` is the header; `^` is the target of the tag in the line before.
            if line.starts_with(b"#") || line.starts_with(b"^") {
                continue;
            }
            let (id, name) = line.split_at_checked(40)?;
            let name = std::str::from_utf8(name.strip_prefix(b" ")?).ok().filter(|name| is_plain(name))?;
            all.insert(name.to_owned(), Id::parse(id)?);
        }
        Some(all)
    }

    /// Follows annotated tags to a commit.
    fn peeled(&mut self, mut id: Id) -> Option<Id> {
        for _ in 0..DEEPEST {
            match self.objects.read(&id)? {
                (Kind::Commit, _) => return Some(id),
                (Kind::Tag, content) => id = tagged(&content)?,
                (Kind::Tree | Kind::Blob, _) => return None,
            }
        }
        None
    }

    fn is_in_git_dir(&self, name: &str) -> Option<bool> {
        for folder in [&self.repository.git_dir, &self.repository.common_dir] {
            match self.roots.find(&folder.join(name), Last::Keep) {
                Err(Error::UnknownPath { .. } | Error::ThroughAFile { .. }) => {}
                Ok(_) => return Some(true),
                Err(_) => return None,
            }
        }
        Some(false)
    }
}

/// The full names that a short name may stand for, in order of precedence (gitrevisions(7)).
fn meanings(name: &str) -> [String; 5] {
    [
        format!("refs/{name}"),
        format!("refs/tags/{name}"),
        format!("refs/heads/{name}"),
        format!("refs/remotes/{name}"),
        format!("refs/remotes/{name}/HEAD"),
    ]
}

/// A name that is valid for git-check-ref-format(1) and contains no revision syntax.
pub(super) fn is_plain(name: &str) -> bool {
    let odd = |character: char| character.is_control() || " ~^:?*[\\".contains(character);
    let part = |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock");
    name.split('/').all(part)
        && !name.ends_with('.')
        && !name.contains(odd)
        && !name.contains("..")
        && !name.contains("@{")
        && name != "@"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Simple names are valid for git.
        #[test]
        fn plain_names_are_names(name in "([a-z@{}./~^: -]|\\.lock|\\.\\.|é){1,6}") {
            if is_plain(&name) {
                let whole = format!("refs/heads/{name}");
                let git = std::process::Command::new("git").args(["check-ref-format", &whole]).status();
                prop_assert!(git.unwrap().success(), "{}", name);
            }
        }
    }
}
