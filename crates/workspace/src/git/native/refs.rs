//! Reads references: branches, tags and `HEAD`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use rustix::fs::FileType;

use super::{ObjectId, Reader, commit::tag_target, objects::ObjectKind};
use crate::{Error, roots::FinalLink};

/// Limit of the file of packed references, in bytes.
const MAX_PACKED_BYTES: u64 = 16 << 20;
/// Limit of a reference's file, in bytes.
const MAX_REF_BYTES: u64 = 1 << 10;
/// Limit of references in a listing.
const MAX_REFS: usize = 20_000;
/// Limit of nested folders, symbolic references and tags of tags.
const MAX_DEPTH: usize = 8;
/// References that are separate for each work tree.
const PER_WORK_TREE: [&str; 5] =
    ["refs/bisect", "refs/worktree", "refs/rewritten", "refs/main-worktree", "refs/worktrees"];

/// What `HEAD` refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// A branch and its commit; `None` before the first one.
    Branch(String, Option<ObjectId>),
    Detached(ObjectId),
}

/// Content of a reference's file.
enum RefContent {
    Missing,
    Id(ObjectId),
    Symbolic(String),
}

impl Reader<'_> {
    pub(super) fn head(&mut self) -> Option<Head> {
        match self.read_ref(&self.repository.git_dir.join("HEAD"))? {
            RefContent::Id(id) => Some(Head::Detached(id)),
            RefContent::Symbolic(name) => {
                let branch = name.strip_prefix("refs/heads/")?.to_owned();
                Some(Head::Branch(branch, self.resolve_ref(&name)?))
            }
            RefContent::Missing => None,
        }
    }

    /// Resolves a full reference name. The inner `Option` is `None` if the reference does not exist.
    pub(super) fn resolve_ref(&mut self, name: &str) -> Option<Option<ObjectId>> {
        let mut name = name.to_owned();
        for _ in 0..MAX_DEPTH {
            let plain = is_simple_name(&name) && name.starts_with("refs/");
            if !plain || PER_WORK_TREE.iter().any(|own| name.starts_with(own)) {
                return None;
            }
            match self.read_ref(&self.repository.common_dir.join(&name))? {
                RefContent::Id(id) => return Some(Some(id)),
                RefContent::Symbolic(next) => name = next,
                RefContent::Missing => return Some(self.packed_refs()?.get(&name).copied()),
            }
        }
        None
    }

    /// Resolves a revision to a commit. Only hashes and names of references are supported.
    pub(super) fn resolve_revision(&mut self, text: &str) -> Option<ObjectId> {
        if let Some(id) = ObjectId::parse(text.as_bytes()) {
            return self.peel(id);
        }
        if text == "HEAD" {
            return match self.head()? {
                Head::Branch(_, id) => id,
                Head::Detached(id) => self.peel(id),
            };
        }
        if text.starts_with("refs/") {
            let id = self.resolve_ref(text)??;
            return self.peel(id);
        }
        // Git first looks for a file with this name in the git directory.
        if !is_simple_name(text) || self.is_in_git_dir(text)? {
            return None;
        }
        for named in expansions(text) {
            if let Some(id) = self.resolve_ref(&named)? {
                return self.peel(id);
            }
        }
        None
    }

    /// The short name of an upstream, if it is unambiguous.
    pub(super) fn short_upstream<'n>(&mut self, whole: &'n str) -> Option<&'n str> {
        let short = whole.strip_prefix("refs/remotes/").or_else(|| whole.strip_prefix("refs/heads/"))?;
        if short.ends_with("/HEAD") || self.is_in_git_dir(short)? {
            return None;
        }
        for other in expansions(short).iter().filter(|other| *other != whole) {
            if self.resolve_ref(other)?.is_some() {
                return None;
            }
        }
        Some(short)
    }

    /// All references below a folder, by name. Symbolic ones are left out.
    pub(super) fn refs_below(&mut self, folder: &str) -> Option<Vec<(String, ObjectId)>> {
        let mut names = BTreeSet::new();
        self.collect_loose(folder, 0, &mut names)?;
        let prefix = format!("{folder}/");
        let packed =
            self.packed_refs()?.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
        names.extend(packed.map(|(name, _)| name.clone()));
        let mut all = Vec::new();
        for name in names {
            if !is_simple_name(&name) || all.len() == MAX_REFS {
                return None;
            }
            match self.read_ref(&self.repository.common_dir.join(&name))? {
                RefContent::Id(id) => all.push((name, id)),
                RefContent::Symbolic(_) => {}
                RefContent::Missing => {
                    let id = *self.packed_refs()?.get(&name)?;
                    all.push((name, id));
                }
            }
        }
        Some(all)
    }

    fn collect_loose(&mut self, folder: &str, depth: usize, names: &mut BTreeSet<String>) -> Option<()> {
        self.check_active()?;
        let found = match self.roots.find(&self.repository.common_dir.join(folder), FinalLink::NoFollow) {
            Err(Error::UnknownPath { .. }) => return Some(()),
            found => found.ok().filter(|found| found.is_directory() && depth < MAX_DEPTH)?,
        };
        for entry in std::fs::read_dir(found.proc_path()).ok()? {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let path = format!("{folder}/{name}");
            match entry.file_type().ok()? {
                kind if kind.is_dir() => self.collect_loose(&path, depth + 1, names)?,
                // A lock file of a concurrent update.
                kind if kind.is_file() && name.ends_with(".lock") => {}
                kind if kind.is_file() => drop(names.insert(path)),
                _ => return None,
            }
            if names.len() > MAX_REFS {
                return None;
            }
        }
        Some(())
    }

    /// Parses the file of a reference.
    fn read_ref(&self, path: &Path) -> Option<RefContent> {
        let found = match self.roots.find(path, FinalLink::NoFollow) {
            Err(Error::UnknownPath { .. } | Error::ThroughAFile { .. }) => return Some(RefContent::Missing),
            found => found.ok()?,
        };
        if found.is_directory() {
            return Some(RefContent::Missing);
        }
        // A symbolic link would be another kind of symbolic reference.
        if found.kind() != FileType::RegularFile {
            return None;
        }
        let text = found.content(MAX_REF_BYTES).ok()?;
        let text = text.strip_suffix(b"\n")?;
        match text.strip_prefix(b"ref: ") {
            Some(name) => Some(RefContent::Symbolic(
                std::str::from_utf8(name).ok().filter(|name| is_simple_name(name))?.to_owned(),
            )),
            None => ObjectId::parse(text).map(RefContent::Id),
        }
    }

    fn packed_refs(&mut self) -> Option<&BTreeMap<String, ObjectId>> {
        if self.packed_refs.is_none() {
            self.packed_refs = Some(self.read_packed()?);
        }
        self.packed_refs.as_ref()
    }

    fn read_packed(&self) -> Option<BTreeMap<String, ObjectId>> {
        let mut all = BTreeMap::new();
        let found = match self.roots.find(&self.repository.common_dir.join("packed-refs"), FinalLink::Follow)
        {
            Err(Error::UnknownPath { .. }) => return Some(all),
            found => found.ok()?,
        };
        let text = found.content(MAX_PACKED_BYTES).ok()?;
        if text.len() as u64 == MAX_PACKED_BYTES || !(text.is_empty() || text.ends_with(b"\n")) {
            return None;
        }
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            // `#` is the header; `^` is the target of the tag in the line before.
            if line.starts_with(b"#") || line.starts_with(b"^") {
                continue;
            }
            let (id, name) = line.split_at_checked(40)?;
            let name =
                std::str::from_utf8(name.strip_prefix(b" ")?).ok().filter(|name| is_simple_name(name))?;
            all.insert(name.to_owned(), ObjectId::parse(id)?);
        }
        Some(all)
    }

    /// Follows annotated tags to a commit.
    fn peel(&mut self, mut id: ObjectId) -> Option<ObjectId> {
        for _ in 0..MAX_DEPTH {
            match self.objects.read(&id)? {
                (ObjectKind::Commit, _) => return Some(id),
                (ObjectKind::Tag, content) => id = tag_target(&content)?,
                (ObjectKind::Tree | ObjectKind::Blob, _) => return None,
            }
        }
        None
    }

    fn is_in_git_dir(&self, name: &str) -> Option<bool> {
        for folder in [&self.repository.git_dir, &self.repository.common_dir] {
            match self.roots.find(&folder.join(name), FinalLink::NoFollow) {
                Err(Error::UnknownPath { .. } | Error::ThroughAFile { .. }) => {}
                Ok(_) => return Some(true),
                Err(_) => return None,
            }
        }
        Some(false)
    }
}

/// The full names that a short name may stand for, in order of precedence (gitrevisions(7)).
fn expansions(name: &str) -> [String; 5] {
    [
        format!("refs/{name}"),
        format!("refs/tags/{name}"),
        format!("refs/heads/{name}"),
        format!("refs/remotes/{name}"),
        format!("refs/remotes/{name}/HEAD"),
    ]
}

/// A name that is valid for git-check-ref-format(1) and contains no revision syntax.
pub(super) fn is_simple_name(name: &str) -> bool {
    let odd = |character: char| {
        character.is_control() || matches!(character, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\')
    };
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
            if is_simple_name(&name) {
                let whole = format!("refs/heads/{name}");
                let git = std::process::Command::new("git").args(["check-ref-format", &whole]).status();
                prop_assert!(git.unwrap().success(), "{}", name);
            }
        }
    }
}
