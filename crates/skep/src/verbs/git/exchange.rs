//! `skep git init|clone|push|pull`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use skep_api::git::PullStrategy;
use skep_client::Upstream;

use super::{Where, show};
use crate::{connection::Connection, output, place::PlaceOption};

/// Make a repository.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Its folder, which is made where it is missing.
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

/// Make a repository out of another one.
#[derive(Debug, Args)]
pub(super) struct Clone {
    /// What is cloned: https, ssh, or a path below a root.
    source: String,
    /// Its folder [default: the name of what is cloned].
    path: Option<String>,
    /// The branch to check out.
    #[arg(short, long)]
    branch: Option<String>,
    /// Only so many commits of its history.
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
        anyhow::ensure!(path.is_some(), "`{}` says no name for the folder; give one", self.source);
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

/// Send a branch to a remote.
#[derive(Debug, Args)]
pub(super) struct Push {
    /// The remote [default: the branch's own, or origin].
    remote: Option<String>,
    /// The branch [default: the current one].
    branch: Option<String>,
    /// Remember the remote's branch as this one's.
    #[arg(short = 'u', long)]
    set_upstream: bool,
    /// Replace what is there, where it is what was last seen.
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

/// Fetch a branch from a remote, and join it with the current one.
#[derive(Debug, Args)]
pub(super) struct Pull {
    /// The remote [default: the branch's own, or origin].
    remote: Option<String>,
    /// The branch [default: the upstream of the current one].
    branch: Option<String>,
    /// How both are joined.
    #[arg(long, value_enum, default_value = "ff-only")]
    strategy: Strategy,
    #[command(flatten)]
    at: Where,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Strategy {
    /// Only where nothing was committed here.
    FfOnly,
    /// By a commit of both.
    Merge,
    /// By doing the commits of here again on those of there.
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
