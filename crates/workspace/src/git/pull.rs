//! Fetches a branch from a remote and integrates it into the current branch.

use skep_api::git::{GitPull, Person, PullStrategy, Pulled};

use super::{
    GitError,
    branch::check_branch_name,
    commit::with_identities,
    config::last_value,
    diff::diff_command,
    large_files,
    lock::write_lock,
    program::{Git, GitOutput},
    push::branch_required,
    raw_diff::parse_paths,
    repository::{Repository, is_hash},
    upstream::Upstream,
};
use crate::{Error, Place, Run};

impl Run for GitPull {
    async fn run(self, place: &Place) -> Result<Pulled, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?.with_submodules(place).await?;
        repository.work_tree()?;
        let current = repository.branch().await?;
        let branch = match &self.branch {
            Some(branch) => branch.clone(),
            None => tracked_branch(&repository, current.as_deref())?,
        };
        check_branch_name(&repository, "branch", &branch).await?;
        let remote = self.remote.as_deref();
        let upstream =
            Upstream::find(place, &repository, remote, current.as_deref(), &place.context().reach, false)
                .await?;
        let _lock = write_lock(&repository.common_dir).await?;
        let there = fetch(&repository, &upstream, &branch).await?;
        let fetched = large_files::fetch(&repository, &upstream, &there).await;
        let integration = integrate(&repository, &there, self.strategy, &place.context().committer, None);
        large_files::checked_out(&repository, &there, fetched, integration).await
    }
}

/// Integrates a local commit into the current branch. `message` is for a merge commit; the default is git's.
pub(super) async fn integrate(
    repository: &Repository,
    there: &str,
    strategy: PullStrategy,
    committer: &Person,
    message: Option<&str>,
) -> Result<Pulled, Error> {
    let from = repository.head().await?;
    merge_or_rebase(repository, there, strategy, committer, message).await?;
    let to = repository.head().await?.ok_or(GitError::UnexpectedOutput { command: "pull" })?;
    let (commits, files_changed) = count_changes(repository, from.as_deref(), &to).await?;
    Ok(Pulled { from, to, commits, files_changed })
}

/// The name of the remote branch that the current branch tracks.
pub(super) fn tracked_branch(repository: &Repository, current: Option<&str>) -> Result<String, Error> {
    let current = current.ok_or_else(branch_required)?;
    let merge = last_value(&repository.config, format!("branch.{current}.merge").as_bytes());
    let merge = merge.map(|merge| String::from_utf8_lossy(merge).into_owned());
    let branch = merge.as_deref().and_then(|merge| merge.strip_prefix("refs/heads/"));
    Ok(branch.unwrap_or(current).to_owned())
}

/// Fetches a branch and returns its commit.
async fn fetch(repository: &Repository, upstream: &Upstream, branch: &str) -> Result<String, Error> {
    let git = upstream.connected_git(repository, "fetch", "upload-pack")?;
    let name = &upstream.name;
    fetch_branch(&upstream.repository(repository), git, name, name, branch, |output| {
        upstream.remote_error(output)
    })
    .await
}

/// Fetches a branch of a remote with this git command, and returns its commit.
///
/// # Errors
/// [`GitError::UnknownRevision`], and the error of `failed`.
pub(super) async fn fetch_branch(
    repository: &Repository,
    git: Git,
    remote: &str,
    called: &str,
    branch: &str,
    failed: impl Fn(&GitOutput) -> GitError,
) -> Result<String, Error> {
    let git =
        git.args(["--quiet", "--no-auto-maintenance", "--recurse-submodules=no", "--no-write-commit-graph"]);
    let output = git.args(["--", remote, &format!("refs/heads/{branch}")]).run().await?;
    if !output.is_success() {
        if output.stderr.contains("couldn't find remote ref") {
            return Err(GitError::UnknownRevision { revision: format!("{called}/{branch}") }.into());
        }
        return Err(failed(&output).into());
    }
    let git = repository.read_only_git().args(["rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"]);
    let output = git.run().await?;
    Some(output.stdout_text())
        .filter(|hash| is_hash(hash))
        .ok_or(GitError::UnexpectedOutput { command: "fetch" }.into())
}

async fn merge_or_rebase(
    repository: &Repository,
    there: &str,
    strategy: PullStrategy,
    committer: &Person,
    message: Option<&str>,
) -> Result<(), Error> {
    let git = with_identities(repository.git(), committer, committer);
    let (git, abort) = match strategy {
        PullStrategy::FfOnly => (git.args(["merge", "--ff-only"]), None),
        PullStrategy::Merge => {
            let message = message.map(|message| format!("--message={message}"));
            (git.args(["merge", "--no-edit", "--no-gpg-sign"]).args(message), Some("merge"))
        }
        PullStrategy::Rebase => {
            // The commits keep their authors.
            let git = repository.git().env("GIT_COMMITTER_NAME", &committer.name);
            let git = git.env("GIT_COMMITTER_EMAIL", &committer.email);
            (git.args(["rebase", "--no-autostash", "--no-fork-point", "--no-gpg-sign"]), Some("rebase"))
        }
    };
    let git = if strategy == PullStrategy::Rebase {
        git
    } else {
        git.args(["--quiet", "--no-verify-signatures", "--no-stat", "--no-autostash"])
    };
    let output = git.args([there]).run().await?;
    if output.is_success() {
        return Ok(());
    }
    // A merge or rebase that was begun earlier must not be aborted.
    let message = output.message();
    let is_others = ["have not concluded", "unmerged files", "already a rebase"]
        .iter()
        .any(|text| message.contains(text));
    if let Some(verb) = abort.filter(|_| !is_others) {
        // If none was begun, this fails and changes nothing.
        repository.git().args([verb, "--abort"]).run().await?;
    }
    Err(integration_error(&output).into())
}

fn integration_error(output: &GitOutput) -> GitError {
    let message = output.message();
    if message.contains("Not possible to fast-forward") || message.contains("not possible to fast-forward") {
        let message =
            "both sides have commits of their own; pass `strategy: merge` or `strategy: rebase`".to_owned();
        return GitError::Conflict { message };
    }
    if ["CONFLICT", "would be overwritten", "could not apply"].iter().any(|text| message.contains(text)) {
        return GitError::Conflict { message };
    }
    GitError::from_message(message)
}

/// Counts the new commits and the changed files.
async fn count_changes(repository: &Repository, from: Option<&str>, to: &str) -> Result<(u64, u64), Error> {
    let range = from.map_or_else(|| to.to_owned(), |from| format!("{from}..{to}"));
    let counted = repository
        .run_checked(repository.read_only_git().args(["rev-list", "--count", &range, "--"]))
        .await?;
    let commits = counted.stdout_text().parse().unwrap_or(0);
    let files = match from {
        Some(from) => {
            let output = repository
                .run_checked(diff_command(repository.read_only_git()).args(["--raw", "-z", from, to]))
                .await?;
            parse_paths(&output.stdout).map_or(0, |files| files.len())
        }
        None => {
            let output = repository
                .run_checked(repository.read_only_git().args(["ls-tree", "-r", "-z", "--name-only", to]))
                .await?;
            output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()).count()
        }
    };
    Ok((commits, files as u64))
}
