//! Linked work trees.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use skep_api::{
    budget::{Budget, MAX_ANSWER_BYTES},
    git::{GitChangeWorktree, GitWorktrees, Worktree, WorktreeChanged, Worktrees},
    path::encode_path,
};

use super::{
    GitError, large_files,
    lock::write_lock,
    repository::{Repository, is_hash},
};
use crate::{
    Error, Place, Run,
    roots::{FinalLink, Slot},
};

impl Run for GitWorktrees {
    async fn run(self, place: &Place) -> Result<Worktrees, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?;
        let (mut worktrees, cut) = list(&repository).await?;
        let mut budget = Budget::default();
        let truncated = budget.truncate_page(&mut worktrees) || cut;
        Ok(Worktrees { worktrees, truncated })
    }
}

/// The work trees, and whether the list was cut.
async fn list(repository: &Repository) -> Result<(Vec<Worktree>, bool), Error> {
    let git = repository.read_only_git().max_output(MAX_ANSWER_BYTES);
    let output = repository.run_checked(git.args(["worktree", "list", "--porcelain", "-z"])).await?;
    let mut worktrees = parse_worktrees(&output.stdout);
    if output.truncated {
        // The last entry may be incomplete.
        worktrees.pop();
    }
    Ok((worktrees, output.truncated))
}

fn parse_worktrees(text: &[u8]) -> Vec<Worktree> {
    let mut all: Vec<Worktree> = Vec::new();
    for line in text.split(|byte| *byte == 0) {
        if let Some(path) = line.strip_prefix(b"worktree ") {
            let (path, path_encoding) = encode_path(OsStr::from_bytes(path));
            all.push(Worktree {
                path,
                path_encoding,
                head: None,
                branch: None,
                detached: false,
                bare: false,
            });
            continue;
        }
        let Some(last) = all.last_mut() else { continue };
        let line = String::from_utf8_lossy(line);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("HEAD", hash) => {
                let born = is_hash(hash) && hash.bytes().any(|digit| digit != b'0');
                last.head = born.then(|| hash.to_owned());
            }
            ("branch", name) => last.branch = name.strip_prefix("refs/heads/").map(str::to_owned),
            ("detached", _) => last.detached = true,
            ("bare", _) => last.bare = true,
            _ => {}
        }
    }
    all
}

impl Run for GitChangeWorktree {
    async fn run(self, place: &Place) -> Result<WorktreeChanged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?.with_submodules(place).await?;
        let _lock = write_lock(&repository.common_dir).await?;
        if self.remove {
            remove(&self, place, &repository).await
        } else {
            add(&self, place, &repository).await
        }
    }
}

async fn add(
    request: &GitChangeWorktree,
    place: &Place,
    repository: &Repository,
) -> Result<WorktreeChanged, Error> {
    let folder = resolve_new_folder(place, request.worktree.as_path()).await?;
    let git = repository.git().args(["worktree", "add", "--quiet", "--no-guess-remote"]);
    let git = match &request.revision {
        None => git.args(["--"]).args([&folder]),
        Some(revision) => {
            repository.resolve("ref", revision, "commit").await?;
            git.args(["--"]).args([folder.as_os_str(), OsStr::new(revision)])
        }
    };
    let revision = match &request.revision {
        Some(revision) => revision.clone(),
        None => default_revision(repository, &folder).await,
    };
    let adding = repository.run_checked(git);
    large_files::check_out(repository, &revision, &place.context().reach, adding).await?;
    let (worktree, path_encoding) = encode_path(request.worktree.as_path().as_os_str());
    let written = encode_path(folder.as_os_str()).0;
    let made = list(repository).await?.0.into_iter().find(|one| one.path == written);
    let (head, branch) = made.map(|made| (made.head, made.branch)).unwrap_or_default();
    Ok(WorktreeChanged { worktree, path_encoding, head, branch, removed: false })
}

/// What git checks out in a new work tree if no revision is named: the branch with the name of the folder, or a new branch at `HEAD`.
async fn default_revision(repository: &Repository, folder: &Path) -> String {
    let branch = folder.file_name().map(|name| format!("refs/heads/{}", name.to_string_lossy()));
    match branch {
        Some(branch) if repository.resolve("ref", &branch, "commit").await.is_ok() => branch,
        _ => "HEAD".to_owned(),
    }
}

async fn remove(
    request: &GitChangeWorktree,
    place: &Place,
    repository: &Repository,
) -> Result<WorktreeChanged, Error> {
    let (inner, named) = (place.clone(), request.worktree.clone());
    let looked = tokio::task::spawn_blocking(move || {
        let found = inner.roots()?.find(named.as_path(), FinalLink::Follow)?;
        std::fs::read_link(found.proc_path()).map_err(|error| Error::of_path(named.as_path(), &error))
    });
    let folder = looked.await.map_err(|_| Error::WorkerFailed)??;
    let written = encode_path(folder.as_os_str()).0;
    let known = list(repository).await?.0.into_iter().skip(1).find(|one| one.path == written);
    let unknown = || GitError::NoRepository { path: request.worktree.as_path().display().to_string() };
    let known = known.ok_or_else(unknown)?;
    repository.run_checked(repository.git().args(["worktree", "remove", "--"]).args([&folder])).await?;
    let (worktree, path_encoding) = encode_path(request.worktree.as_path().as_os_str());
    Ok(WorktreeChanged { worktree, path_encoding, head: None, branch: known.branch, removed: true })
}

/// The real path of a folder that does not exist yet or is empty.
pub(super) async fn resolve_new_folder(place: &Place, path: &Path) -> Result<PathBuf, Error> {
    let (place, path) = (place.clone(), path.to_owned());
    let looked = tokio::task::spawn_blocking(move || {
        let roots = place.roots()?;
        let taken = || Error::AlreadyExists { path: path.display().to_string() };
        let failed = |error: std::io::Error| Error::of_path(&path, &error);
        match roots.find(&path, FinalLink::Follow) {
            Ok(found) if found.is_directory() => {
                let mut names = std::fs::read_dir(found.proc_path()).map_err(failed)?;
                if names.next().is_some() {
                    return Err(taken());
                }
                std::fs::read_link(found.proc_path()).map_err(failed)
            }
            Ok(_) => Err(taken()),
            Err(Error::UnknownPath { .. }) => {
                let slot: Slot = roots.slot(&path)?;
                let folder = std::fs::read_link(slot.folder().proc_path()).map_err(failed)?;
                Ok(folder.join(slot.name()))
            }
            Err(error) => Err(error),
        }
    });
    looked.await.map_err(|_| Error::WorkerFailed)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sort_of_work_tree_is_read() {
        let hash = "a".repeat(40);
        let text = format!(
            "worktree /a\nb\0HEAD {hash}\0branch refs/heads/x/y\0\0worktree /c\0HEAD {hash}\0detached\0locked why\0\0\
             worktree /d\0bare\0\0"
        );
        let all = parse_worktrees(text.as_bytes());
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].path.as_str(), all[0].branch.as_deref()), ("/a\nb", Some("x/y")));
        assert!(all[1].detached && all[2].bare && all[2].head.is_none());
    }
}
