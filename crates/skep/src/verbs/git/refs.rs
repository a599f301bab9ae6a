//! `skep git merge|tag|remote`.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use skep_api::git::{GitChangeRemote, GitChangeTag, GitMerge, GitRemotes, GitTags};

use super::{RepositoryOptions, show};
use crate::output;

/// Merge a branch or a commit into the current branch.
#[derive(Debug, Args)]
pub(super) struct Merge {
    /// Branch, tag or commit.
    revision: String,
    /// Refuse a merge that is not a fast-forward.
    #[arg(long)]
    ff_only: bool,
    /// Message of the merge commit [default: git's own].
    #[arg(short, long)]
    message: Option<String>,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Merge {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let merge = GitMerge {
            path: opened.path(),
            revision: self.revision,
            ff_only: self.ff_only,
            message: self.message,
        };
        opened.print(&opened.run(&merge).await?, show::pulled)
    }
}

/// List tags; with a name, create or delete that tag.
#[derive(Debug, Args)]
pub(super) struct Tag {
    /// Tag to create, or to delete with -d.
    name: Option<String>,
    /// Commit to tag [default: the current one].
    #[arg(requires = "name")]
    revision: Option<String>,
    /// Message of an annotated tag; without it, a lightweight tag is created.
    #[arg(short, long, requires = "name", conflicts_with = "delete")]
    message: Option<String>,
    /// Delete the tag.
    #[arg(short, long, requires = "name", conflicts_with = "revision")]
    delete: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Tag {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let Some(name) = self.name else {
            return opened.print(&opened.run(&GitTags { path: Some(opened.path()) }).await?, show::tags);
        };
        let change = GitChangeTag {
            path: opened.path(),
            name,
            revision: self.revision,
            message: self.message,
            delete: self.delete,
        };
        opened.print(&opened.run(&change).await?, |tag| {
            let verb = if tag.deleted { "deleted; it was" } else { "created" };
            output::line(&format!("{} {verb} at {}", tag.name, show::short(&tag.commit)))
        })
    }
}

/// List, add, change or remove remotes.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Remote {
    #[command(subcommand)]
    verb: Option<RemoteVerb>,
    #[command(flatten)]
    at: RepositoryOptions,
}

#[derive(Debug, Subcommand)]
enum RemoteVerb {
    /// List the remotes.
    List(RemoteList),
    /// Add a remote without fetching from it.
    Add(RemoteUrl),
    /// Remove a remote and its remote-tracking branches.
    Remove(RemoteName),
    /// Change the URL of a remote.
    SetUrl(RemoteUrl),
}

#[derive(Debug, Args)]
struct RemoteList {
    #[command(flatten)]
    at: RepositoryOptions,
}

#[derive(Debug, Args)]
struct RemoteName {
    /// Name of the remote.
    name: String,
    #[command(flatten)]
    at: RepositoryOptions,
}

#[derive(Debug, Args)]
struct RemoteUrl {
    /// Name of the remote.
    name: String,
    /// https or ssh URL, path, skep://server/PATH or skep://VM/PATH.
    #[arg(value_name = "URL")]
    remote_url: String,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Remote {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            None => list(&self.at).await,
            Some(RemoteVerb::List(verb)) => list(&verb.at).await,
            Some(RemoteVerb::Add(verb)) => set(verb, false).await,
            Some(RemoteVerb::SetUrl(verb)) => set(verb, true).await,
            Some(RemoteVerb::Remove(verb)) => {
                let opened = verb.at.open().await?;
                let (path, name) = (opened.path(), verb.name);
                let remove = GitChangeRemote { path, name, url: None, replace: false, remove: true };
                opened.print(&opened.run(&remove).await?, |removed| {
                    output::line(&format!("{} removed", removed.name))
                })
            }
        }
    }
}

async fn list(at: &RepositoryOptions) -> anyhow::Result<ExitCode> {
    let opened = at.open().await?;
    opened.print(&opened.run(&GitRemotes { path: Some(opened.path()) }).await?, show::remotes)
}

async fn set(verb: RemoteUrl, replace: bool) -> anyhow::Result<ExitCode> {
    let opened = verb.at.open().await?;
    let (path, name, url) = (opened.path(), verb.name, Some(verb.remote_url));
    let change = GitChangeRemote { path, name, url, replace, remove: false };
    opened.print(&opened.run(&change).await?, |changed| {
        output::line(&output::visible(&format!(
            "{} {}",
            changed.name,
            changed.url.as_deref().unwrap_or_default()
        )))
    })
}
