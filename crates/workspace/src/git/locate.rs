//! Finds a repository below the roots and checks that all of its parts lie below the roots.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::{
    GitError,
    config::{ConfigEntry, parse_simple_config},
};
use crate::{
    Error, Roots,
    roots::{FinalLink, PathHandle},
};

/// Limit for each file of a repository that is read here, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Name prefix of the temporary repositories of exchanges. They are never listed.
pub(super) const TEMPORARY_PREFIX: &str = ".skep-exchange-";
/// Entries of a git directory that may be symbolic links, if they lead to a file or folder below the roots.
const ENTRIES: [&str; 15] = [
    "HEAD",
    "config",
    "index",
    "info",
    "lfs",
    "logs",
    "objects",
    "objects/info",
    "objects/info/alternates",
    "objects/pack",
    "packed-refs",
    "refs",
    "reftable",
    "reftable/tables.list",
    "shallow",
];

/// Further files that git opens by these names. A link that leads outside is not refused: git's fence denies access, and git
/// continues without the file.
const OPENED: [&str; 23] = [
    "AUTO_MERGE",
    "BISECT_LOG",
    "BISECT_START",
    "CHERRY_PICK_HEAD",
    "COMMIT_EDITMSG",
    "MERGE_HEAD",
    "ORIG_HEAD",
    "REVERT_HEAD",
    "config.worktree",
    "info/attributes",
    "info/exclude",
    "info/grafts",
    "info/sparse-checkout",
    "logs/HEAD",
    "objects/info/commit-graph",
    "objects/info/commit-graphs/commit-graph-chain",
    "objects/pack/multi-pack-index",
    "rebase-apply/head-name",
    "rebase-apply/onto",
    "rebase-merge/head-name",
    "rebase-merge/onto",
    "refs/stash",
    "sequencer/todo",
];

#[derive(Debug, Clone)]
pub(super) struct RepositoryLayout {
    pub(super) top: Option<PathBuf>,
    pub(super) git_dir: PathBuf,
    pub(super) common_dir: PathBuf,
    /// Its config, if it can be read without git.
    pub(super) config: Option<Vec<ConfigEntry>>,
    /// The branch that `HEAD` names, if it can be read without git.
    pub(super) branch: Option<String>,
}

/// The repository that contains a path: at the path itself, or above it and below the roots.
pub(super) fn discover(roots: &Roots, path: &Path) -> Result<RepositoryLayout, Error> {
    let found = roots.find(path, FinalLink::Follow)?;
    if !found.is_directory() {
        return Err(Error::NotAFolder { path: path.display().to_string() });
    }
    let mut folder = real_path(&found, path)?;
    loop {
        if let Some(layout) = repository_at(roots, &folder)? {
            return Ok(layout);
        }
        let above = folder.parent().map(Path::to_owned);
        match above.filter(|above| roots.find(above, FinalLink::Follow).is_ok()) {
            Some(above) => folder = above,
            None => return Err(GitError::NoRepository { path: path.display().to_string() }.into()),
        }
    }
}

/// How many entries of a folder are examined.
const MAX_ENTRIES: usize = 10_000;
/// How many repositories an error message lists.
const MAX_NAMED: usize = 20;

/// The root that is a repository, or else the only repository directly below the roots. `home`, the folder in which
/// commands start, counts as a root.
pub(super) fn sole_repository(roots: &Roots, home: &Path) -> Result<(PathBuf, RepositoryLayout), Error> {
    let (mut all, _) = list_repositories(roots, home)?;
    let names: Vec<_> = all.iter().take(MAX_NAMED).map(|(path, _)| path.display().to_string()).collect();
    match (all.pop(), names.len()) {
        (Some(only), 1) => Ok(only),
        (None, _) => {
            let found = "there is no repository in the roots; create or clone one first";
            Err(GitError::PathRequired { found: found.to_owned() }.into())
        }
        _ => {
            let found = format!(
                "there are several repositories in the roots: {}; name one by `path`",
                names.join(", ")
            );
            Err(GitError::PathRequired { found }.into())
        }
    }
}

/// The first root, or `home`, that is a repository itself; otherwise the repositories directly below them, sorted by
/// path. The flag is set if not all entries were examined.
pub(super) fn list_repositories(
    roots: &Roots,
    home: &Path,
) -> Result<(Vec<(PathBuf, RepositoryLayout)>, bool), Error> {
    let mut folders: Vec<&Path> = roots.paths().collect();
    // In a VM the root is the whole file system, and repositories are in the folder where commands start.
    if !folders.contains(&home) && roots.find(home, FinalLink::Follow).is_ok_and(|found| found.is_directory())
    {
        folders.push(home);
    }
    for folder in &folders {
        if let Some(layout) = repository_at(roots, folder)? {
            return Ok((vec![((*folder).to_owned(), layout)], false));
        }
    }
    let (mut all, mut cut) = (Vec::new(), false);
    for folder in folders {
        cut |= collect_below(roots, folder, &mut all)?;
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok((all, cut))
}

/// Adds the repositories directly below a folder. Returns whether the limit of examined entries was reached.
fn collect_below(
    roots: &Roots,
    folder: &Path,
    all: &mut Vec<(PathBuf, RepositoryLayout)>,
) -> Result<bool, Error> {
    let found = roots.find(folder, FinalLink::Follow)?;
    let names = std::fs::read_dir(found.proc_path()).map_err(|error| Error::of_path(folder, &error))?;
    let mut seen = 0;
    for name in names.flatten().take(MAX_ENTRIES) {
        seen += 1;
        let path = folder.join(name.file_name());
        if name.file_name().as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
            continue;
        }
        let is_folder = roots.find(&path, FinalLink::NoFollow).is_ok_and(|found| found.is_directory());
        if is_folder && let Ok(Some(repository)) = repository_at(roots, &path) {
            all.push((path, repository));
        }
    }
    Ok(seen == MAX_ENTRIES)
}

/// The repository at exactly this folder, if there is one, with all of its parts below the roots.
pub(super) fn repository_at(roots: &Roots, folder: &Path) -> Result<Option<RepositoryLayout>, Error> {
    let dot = folder.join(".git");
    let (top, git_dir) = match roots.find(&dot, FinalLink::Follow) {
        Ok(found) if found.is_directory() => (Some(folder.to_owned()), real_path(&found, &dot)?),
        Ok(found) => match read_pointer(&found, b"gitdir: ", &dot)? {
            Some(to) => {
                let to = folder.join(to);
                (Some(folder.to_owned()), real_path(&find_inside(roots, &to, "file `.git`")?, &to)?)
            }
            None => return Ok(None),
        },
        Err(Error::OutsideRoots { .. }) => return Err(leads_outside("`.git`")),
        Err(_) => {
            let has = |name: &str| roots.find(&folder.join(name), FinalLink::Follow).is_ok();
            if !["HEAD", "objects", "refs"].iter().all(|name| has(name)) {
                return Ok(None);
            }
            (None, folder.to_owned())
        }
    };
    let shared = git_dir.join("commondir");
    let common_dir = match roots.find(&shared, FinalLink::Follow) {
        Ok(found) => {
            let to = read_pointer(&found, b"", &shared)?.unwrap_or_else(|| PathBuf::from("."));
            let to = git_dir.join(to);
            real_path(&find_inside(roots, &to, "file `commondir`")?, &to)?
        }
        Err(Error::UnknownPath { .. }) => git_dir.clone(),
        Err(_) => return Err(leads_outside("file `commondir`")),
    };
    if roots.find(&git_dir.join("HEAD"), FinalLink::NoFollow).is_err() {
        return Ok(None);
    }
    check_entries(roots, &git_dir)?;
    if common_dir != git_dir {
        check_entries(roots, &common_dir)?;
    }
    check_alternates(roots, &common_dir)?;
    let own = simple_config(roots, &git_dir, &common_dir);
    let branch = head_branch(roots, &git_dir);
    Ok(Some(RepositoryLayout { top, git_dir, common_dir, config: own, branch }))
}

/// The config of a repository, if a single file without special syntax holds all of it.
fn simple_config(roots: &Roots, git_dir: &Path, common_dir: &Path) -> Option<Vec<ConfigEntry>> {
    // Git reads this second file only if the config says so; such repositories are left to git.
    if !matches!(
        roots.find(&git_dir.join("config.worktree"), FinalLink::NoFollow),
        Err(Error::UnknownPath { .. })
    ) {
        return None;
    }
    let path = common_dir.join("config");
    let text = read_small(&roots.find(&path, FinalLink::Follow).ok()?, &path).ok()?;
    if text.len() as u64 == MAX_FILE_BYTES { None } else { parse_simple_config(&text) }
}

fn head_branch(roots: &Roots, git_dir: &Path) -> Option<String> {
    let path = git_dir.join("HEAD");
    let text = read_small(&roots.find(&path, FinalLink::Follow).ok()?, &path).ok()?;
    let text = String::from_utf8(text).ok()?;
    let name = text.strip_prefix("ref: refs/heads/")?.strip_suffix('\n')?;
    // If references are not stored as files, git writes this placeholder into `HEAD`.
    let plain = !name.is_empty() && name != ".invalid" && !name.contains(['\n', ' ']);
    plain.then(|| name.to_owned())
}

/// The real path of a found folder.
fn real_path(found: &PathHandle, path: &Path) -> Result<PathBuf, Error> {
    std::fs::read_link(found.proc_path()).map_err(|error| Error::of_path(path, &error))
}

fn leads_outside(what: &str) -> Error {
    GitError::Hostile { what: what.to_owned(), why: "leads outside the roots" }.into()
}

fn find_inside(roots: &Roots, path: &Path, what: &str) -> Result<PathHandle, Error> {
    match roots.find(path, FinalLink::Follow) {
        Err(Error::OutsideRoots { .. }) => Err(leads_outside(what)),
        other => other,
    }
}

/// The path that one of git's pointer files holds.
fn read_pointer(found: &PathHandle, prefix: &[u8], path: &Path) -> Result<Option<PathBuf>, Error> {
    let text = read_small(found, path)?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    Ok(text.strip_prefix(prefix).map(|path| PathBuf::from(OsStr::from_bytes(path))))
}

fn read_small(found: &PathHandle, path: &Path) -> Result<Vec<u8>, Error> {
    found.content(MAX_FILE_BYTES).map_err(|error| Error::of_path(path, &error))
}

fn check_entries(roots: &Roots, folder: &Path) -> Result<(), Error> {
    for name in ENTRIES.into_iter().chain(OPENED) {
        let what = || format!("`{name}`");
        match roots.find(&folder.join(name), FinalLink::Follow) {
            // Git would wait for a writer of a FIFO.
            Ok(found) if matches!(found.kind(), FileType::Fifo | FileType::Socket) => {
                return Err(GitError::Hostile { what: what(), why: "is a FIFO or a socket" }.into());
            }
            Err(Error::OutsideRoots { .. }) if ENTRIES.contains(&name) => return Err(leads_outside(&what())),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the object stores that this one borrows from, and those that they borrow from.
fn check_alternates(roots: &Roots, common_dir: &Path) -> Result<(), Error> {
    let what = "file `objects/info/alternates`";
    let mut ahead = vec![common_dir.join("objects")];
    let mut seen = 0;
    while let Some(objects) = ahead.pop() {
        let list = objects.join("info/alternates");
        let found = match roots.find(&list, FinalLink::Follow) {
            Ok(found) => found,
            Err(Error::OutsideRoots { .. }) => return Err(leads_outside(what)),
            Err(_) => continue,
        };
        for line in read_small(&found, &list)?.split(|byte| *byte == b'\n') {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            seen += 1;
            let borrowed = objects.join(OsStr::from_bytes(line));
            match roots.find(&borrowed, FinalLink::Follow) {
                // Git ignores missing ones.
                Err(Error::UnknownPath { .. }) => continue,
                Err(_) => return Err(leads_outside(what)),
                Ok(found) => ahead.push(real_path(&found, &borrowed)?),
            }
            if line.starts_with(b"\"") || seen > 64 {
                return Err(
                    GitError::Hostile { what: what.to_owned(), why: "is not as git writes it" }.into()
                );
            }
        }
    }
    Ok(())
}
