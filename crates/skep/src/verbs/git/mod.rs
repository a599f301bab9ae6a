//! `skep git`.

mod change;
mod exchange;
mod look;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use skep_client::{Answered, Client, Repository};

use crate::{
    connection::{Connection, EXIT_CODES},
    output,
    place::{Place, PlaceOption},
};

/// Work with git repositories in the server's workspace or in a VM.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Git {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show staged, modified and untracked files.
    Status(look::Status),
    /// Show differences between work tree, index and commits.
    Diff(look::DiffVerb),
    /// Show commits, newest first.
    Log(look::LogVerb),
    /// List, create or delete branches.
    Branch(change::Branch),
    /// Stage files: all changes, or the named ones.
    Add(change::Add),
    /// Commit the staged changes.
    Commit(change::Commit),
    /// Check out a branch or a commit.
    Checkout(change::Checkout),
    /// Reset the current branch to a commit, or unstage changes.
    Reset(change::Reset),
    /// Stash changes, or restore them.
    Stash(change::Stash),
    /// List, add or remove work trees.
    Worktree(change::Worktree),
    /// Create a repository.
    Init(exchange::Init),
    /// Clone a repository.
    Clone(exchange::Clone),
    /// Push a branch to a remote.
    Push(exchange::Push),
    /// Fetch a branch from a remote and integrate it into the current one.
    Pull(exchange::Pull),
}

/// Which repository, and at which server.
#[derive(Debug, Args)]
struct Where {
    /// Repository; a relative path is below the workspace, in a VM below /root [default: the only repository there].
    #[arg(short = 'C', long = "repository", value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

/// A repository at a server.
struct Opened {
    repository: Repository,
    place: Place,
    json: bool,
}

impl Where {
    /// The repository that was named; the folder where relative paths begin where none was, and `anywhere` does not hold.
    async fn open(&self, anywhere: bool) -> anyhow::Result<Opened> {
        let client: Client = self.connection.client()?;
        let place = self.place.open(&client).await?;
        let path = match &self.path {
            None if anywhere => None,
            given => Some(place.path(given.as_deref().unwrap_or_default())?),
        };
        let repository = client.git(self.place.vm(), path.as_ref());
        Ok(Opened { repository, place, json: self.connection.json })
    }
}

impl Opened {
    /// Prints an answer as it came, or as people read it.
    fn tell<T: DeserializeOwned>(
        &self,
        answer: &Answered<T>,
        show: impl FnOnce(&T) -> std::io::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        if self.json {
            output::json(&answer.text)?;
        } else {
            show(&answer.value)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(crate) async fn run(verb: Git) -> anyhow::Result<ExitCode> {
    match verb.verb {
        Verb::Status(verb) => verb.run().await,
        Verb::Diff(verb) => verb.run().await,
        Verb::Log(verb) => verb.run().await,
        Verb::Branch(verb) => verb.run().await,
        Verb::Add(verb) => verb.run().await,
        Verb::Commit(verb) => verb.run().await,
        Verb::Checkout(verb) => verb.run().await,
        Verb::Reset(verb) => verb.run().await,
        Verb::Stash(verb) => verb.run().await,
        Verb::Worktree(verb) => verb.run().await,
        Verb::Init(verb) => verb.run().await,
        Verb::Clone(verb) => verb.run().await,
        Verb::Push(verb) => verb.run().await,
        Verb::Pull(verb) => verb.run().await,
    }
}
