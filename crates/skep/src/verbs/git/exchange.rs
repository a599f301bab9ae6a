//! `skep git init|clone|push|pull`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use skep_api::git::PullStrategy;
use skep_client::Upstream;

use super::{Where, show};
use crate::{connection::Connection, output, place::PlaceOption};

/// Create a repository.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Folder of the repository; it is created if it does not exist.
    path: String,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

impl Init {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let at = Where { path: Some(self.path), place: self.place, connection: self.connection };
        let opened = at.open(false).await?;
        opened.tell(&opened.repository.init().await?, |made| output::line(&output::visible(&made.path)))
    }
}

/// Clone a repository.
#[derive(Debug, Args)]
pub(super) struct Clone {
    /// Source: an https or ssh URL, or a path in the workspace.
    source: String,
    /// Target folder [default: the name of the source].
    path: Option<String>,
    /// Branch to check out.
    #[arg(short, long)]
    branch: Option<String>,
    /// Number of commits of the history to fetch [default: all].
    #[arg(long)]
    depth: Option<u32>,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

impl Clone {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let path = self.path.or_else(|| name_of(&self.source).map(str::to_owned));
        anyhow::ensure!(
            path.is_some(),
            "`{}` gives no name for the folder; name the folder after it",
            self.source
        );
        let at = Where { path, place: self.place, connection: self.connection };
        let opened = at.open(false).await?;
        let made = opened.repository.clone_from(&self.source, self.branch.as_deref(), self.depth);
        let made = output::waiting("cloning", made).await?;
        opened.tell(&made, |made| output::line(&output::visible(&made.path)))
    }
}

/// `project` of `https://host/owner/project.git`.
fn name_of(url: &str) -> Option<&str> {
    let url = url.trim_end_matches('/');
    let name = url.rsplit(['/', ':']).next().unwrap_or(url);
    Some(name.strip_suffix(".git").unwrap_or(name)).filter(|name| !name.is_empty())
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
    at: Where,
}

impl Push {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(true).await?;
        let to = Upstream { remote: self.remote, branch: self.branch };
        let pushed = opened.repository.push(&to, self.set_upstream, self.force_with_lease);
        opened.tell(&output::waiting("pushing", pushed).await?, show::pushed)
    }
}

/// Fetch a branch from a remote and integrate it into the current one.
#[derive(Debug, Args)]
pub(super) struct Pull {
    /// Remote [default: the upstream of the branch, or origin].
    remote: Option<String>,
    /// Branch [default: the upstream of the current one].
    branch: Option<String>,
    /// How to integrate it.
    #[arg(long, value_enum, default_value = "ff-only")]
    strategy: Strategy,
    #[command(flatten)]
    at: Where,
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
        let opened = self.at.open(true).await?;
        let from = Upstream { remote: self.remote, branch: self.branch };
        let strategy = match self.strategy {
            Strategy::FfOnly => PullStrategy::FfOnly,
            Strategy::Merge => PullStrategy::Merge,
            Strategy::Rebase => PullStrategy::Rebase,
        };
        let pulled = output::waiting("pulling", opened.repository.pull(&from, strategy)).await?;
        opened.tell(&pulled, show::pulled)
    }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn a_clone_is_named_after_what_is_cloned() {
        for url in ["https://x/a/p.git", "https://x/a/p", "git@x:a/p.git", "git@x:p.git", "/srv/p/", "p"] {
            assert_eq!(name_of(url), Some("p"), "{url}");
        }
        assert_eq!(name_of("/"), None);
    }
}
