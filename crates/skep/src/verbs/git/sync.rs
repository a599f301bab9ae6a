//! `skep git init|fetch|push|pull`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use skep_api::git::{GitFetchRemote, GitInit, GitPull, GitPush, PullStrategy};

use super::{RepositoryOptions, show};
use crate::{connection::Connection, output, place::PlaceOption};

/// Create a repository.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Folder of the repository; it is created if it does not exist.
    path: String,
    /// Create a bare repository, without a work tree, as a target of pushes.
    #[arg(long)]
    bare: bool,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

impl Init {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let at = RepositoryOptions { path: Some(self.path), place: self.place, connection: self.connection };
        let opened = at.open().await?;
        opened.print(&opened.run(&GitInit { path: opened.path(), bare: self.bare }).await?, |made| {
            output::line(&output::visible(&made.path))
        })
    }
}

/// Fetch all branches of a remote, without changing the current branch.
#[derive(Debug, Args)]
pub(super) struct Fetch {
    /// Remote [default: that of the branch, or origin].
    remote: Option<String>,
    /// Delete remote-tracking branches that the remote no longer has.
    #[arg(short, long)]
    prune: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Fetch {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let fetch = GitFetchRemote { path: Some(opened.path()), remote: self.remote, prune: self.prune };
        opened.print(&output::with_spinner("fetching", opened.run(&fetch)).await?, show::fetched)
    }
}

/// Push a branch to a remote.
#[derive(Debug, Args)]
pub(super) struct Push {
    /// Remote [default: the upstream of the branch, or origin].
    remote: Option<String>,
    /// Branch [default: the current one].
    branch: Option<String>,
    /// Set the remote branch as the upstream of this one.
    #[arg(short = 'u', long)]
    set_upstream: bool,
    /// Overwrite the remote branch if it is still at the commit that was last fetched.
    #[arg(long)]
    force_with_lease: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Push {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let push = GitPush {
            path: Some(opened.path()),
            remote: self.remote,
            branch: self.branch,
            set_upstream: self.set_upstream,
            force_with_lease: self.force_with_lease,
        };
        opened.print(&output::with_spinner("pushing", opened.run(&push)).await?, show::pushed)
    }
}

/// Fetch a branch from a remote and integrate it into the current one.
#[derive(Debug, Args)]
pub(super) struct Pull {
    /// Remote [default: the upstream of the branch, or origin].
    remote: Option<String>,
    /// Branch [default: the upstream of the current one].
    branch: Option<String>,
    /// How to integrate the remote branch.
    #[arg(long, value_enum, default_value = "ff-only")]
    strategy: Strategy,
    #[command(flatten)]
    at: RepositoryOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Strategy {
    /// Fast-forward only: refuse if there are local commits.
    FfOnly,
    /// Create a merge commit.
    Merge,
    /// Rebase the local commits onto the remote ones.
    Rebase,
}

impl Pull {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let strategy = match self.strategy {
            Strategy::FfOnly => PullStrategy::FfOnly,
            Strategy::Merge => PullStrategy::Merge,
            Strategy::Rebase => PullStrategy::Rebase,
        };
        let pull = GitPull { path: Some(opened.path()), remote: self.remote, branch: self.branch, strategy };
        opened.print(&output::with_spinner("pulling", opened.run(&pull)).await?, show::pulled)
    }
}
