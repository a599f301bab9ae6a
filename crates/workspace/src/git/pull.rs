//! Fetches a branch from a remote and integrates it into the current branch.

use skep_api::git::{GitPull, Person, PullStrategy, Pulled};

use super::{
    Refused,
    branch::check_name,
    changes::read_changed,
    commit::as_person,
    diff::diff,
    lock::turn,
    program::{Git, Said},
    push::no_branch,
    repository::{Repository, is_hash},
    settings::value,
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
            None => followed(&repository, current.as_deref())?,
        };
        check_name(&repository, "branch", &branch).await?;
        let remote = self.remote.as_deref();
        let upstream =
            Upstream::find(place, &repository, remote, current.as_deref(), &self.reach, false).await?;
        let _turn = turn(&repository.common_dir).await?;
        let there = fetch(&repository, &upstream, &branch).await?;
        let repository =
            if repository.settings.has_filters() { repository.by(upstream.way()) } else { repository };
        joined(&repository, &there, self.strategy, &self.committer, None).await
    }
}

/// Integrates a local commit into the current branch. `message` is for a merge commit; the default is git's.
pub(super) async fn joined(
    repository: &Repository,
    there: &str,
    strategy: PullStrategy,
    committer: &Person,
    message: Option<&str>,
) -> Result<Pulled, Error> {
    let from = repository.head().await?;
    join(repository, there, strategy, committer, message).await?;
    let to = repository.head().await?.ok_or(Refused::Unreadable { command: "pull" })?;
    let (commits, files_changed) = news(repository, from.as_deref(), &to).await?;
    Ok(Pulled { from, to, commits, files_changed })
}

/// The name of the remote branch that the current branch tracks.
pub(super) fn followed(repository: &Repository, current: Option<&str>) -> Result<String, Error> {
    let current = current.ok_or_else(no_branch)?;
    let merge = value(&repository.own, format!("branch.{current}.merge").as_bytes());
    let merge = merge.map(|merge| String::from_utf8_lossy(merge).into_owned());
    let branch = merge.as_deref().and_then(|merge| merge.strip_prefix("refs/heads/"));
    Ok(branch.unwrap_or(current).to_owned())
}

/// Fetches a branch and returns its commit.
async fn fetch(repository: &Repository, upstream: &Upstream, branch: &str) -> Result<String, Error> {
    let git = upstream.git(repository, "fetch", "upload-pack")?;
    let name = &upstream.name;
    fetched(repository, git, name, name, branch, |said| upstream.failed(said)).await
}

/// Fetches a branch of a remote with this git command, and returns its commit.
///
/// # Errors
/// [`Refused::UnknownRevision`], and the error of `failed`.
pub(super) async fn fetched(
    repository: &Repository,
    git: Git,
    remote: &str,
    called: &str,
    branch: &str,
    failed: impl Fn(&Said) -> Refused,
) -> Result<String, Error> {
    let git =
        git.args(["--quiet", "--no-auto-maintenance", "--recurse-submodules=no", "--no-write-commit-graph"]);
    let said = git.args(["--", remote, &format!("refs/heads/{branch}")]).run().await?;
    if !said.done() {
        if said.complaints.contains("couldn't find remote ref") {
            return Err(Refused::UnknownRevision { revision: format!("{called}/{branch}") }.into());
        }
        return Err(failed(&said).into());
    }
    let git = repository.reading().args(["rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"]);
    let said = git.run().await?;
    Some(said.line()).filter(|hash| is_hash(hash)).ok_or(Refused::Unreadable { command: "fetch" }.into())
}

async fn join(
    repository: &Repository,
    there: &str,
    strategy: PullStrategy,
    committer: &Person,
    message: Option<&str>,
) -> Result<(), Error> {
    let git = as_person(repository.git(), committer, committer);
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
    let said = git.args([there]).run().await?;
    if said.done() {
        return Ok(());
    }
    // A merge or rebase that was begun earlier must not be aborted.
    let words = said.words();
    let is_others =
        ["have not concluded", "unmerged files", "already a rebase"].iter().any(|text| words.contains(text));
    if let Some(verb) = abort.filter(|_| !is_others) {
        // If none was begun, this fails and changes nothing.
        repository.git().args([verb, "--abort"]).run().await?;
    }
    Err(refused(&said).into())
}

fn refused(said: &Said) -> Refused {
    let words = said.words();
    if words.contains("Not possible to fast-forward") || words.contains("not possible to fast-forward") {
        let words =
            "both sides have commits of their own; say `strategy: merge` or `strategy: rebase`".to_owned();
        return Refused::Conflict { words };
    }
    if ["CONFLICT", "would be overwritten", "could not apply"].iter().any(|text| words.contains(text)) {
        return Refused::Conflict { words };
    }
    Refused::by_words(words)
}

/// Counts the new commits and the changed files.
async fn news(repository: &Repository, from: Option<&str>, to: &str) -> Result<(u64, u64), Error> {
    let range = from.map_or_else(|| to.to_owned(), |from| format!("{from}..{to}"));
    let counted = repository.done(repository.reading().args(["rev-list", "--count", &range, "--"])).await?;
    let commits = counted.line().parse().unwrap_or(0);
    let files = match from {
        Some(from) => {
            let said = repository.done(diff(repository.reading()).args(["--raw", "-z", from, to])).await?;
            read_changed(&said.out).map_or(0, |files| files.len())
        }
        None => {
            let said = repository
                .done(repository.reading().args(["ls-tree", "-r", "-z", "--name-only", to]))
                .await?;
            said.out.split(|byte| *byte == 0).filter(|name| !name.is_empty()).count()
        }
    };
    Ok((commits, files as u64))
}
