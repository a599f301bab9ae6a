//! `skep git`.

mod change;
mod clone;
mod credentials;
mod inspect;
mod refs;
mod show;
mod sync;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use skep_api::{AbsolutePath, WorkspaceEndpoint, git::GitRepositories};
use skep_client::{Answered, Client};

use crate::{
    connection::Connection,
    output,
    place::{PlaceOption, PlaceWithHome},
    target::UsageError,
};

/// Work with git repositories in the server's workspace or in a VM.
#[derive(Debug, Args)]
pub(crate) struct Git {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show staged, modified and untracked files.
    Status(inspect::Status),
    /// Show differences between work tree, index and commits.
    Diff(inspect::DiffVerb),
    /// Show commits, newest first.
    Log(inspect::LogVerb),
    /// Show a commit and its changes, or a file at a commit.
    Show(inspect::Show),
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
    Init(sync::Init),
    /// Clone a repository.
    Clone(clone::Clone),
    /// Fetch all branches of a remote, without changing the current branch.
    Fetch(sync::Fetch),
    /// Merge a branch or a commit into the current branch.
    Merge(refs::Merge),
    /// List, create or delete tags.
    Tag(refs::Tag),
    /// List, add, change or remove remotes.
    Remote(refs::Remote),
    /// Push a branch to a remote.
    Push(sync::Push),
    /// Fetch a branch from a remote and integrate it into the current one.
    Pull(sync::Pull),
    /// List, set or remove the account's tokens and keys for git remotes.
    Credentials(credentials::Credentials),
}

/// The options that select a repository.
#[derive(Debug, Args)]
struct RepositoryOptions {
    /// Repository; a relative path starts at the workspace, in a VM at /root [default: the only repository there].
    #[arg(short = 'C', long = "repository", value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    place: PlaceOption,
    #[command(flatten)]
    connection: Connection,
}

/// A selected repository.
struct OpenRepository {
    place: PlaceWithHome,
    path: AbsolutePath,
    json: bool,
}

impl RepositoryOptions {
    /// Selects the named repository, or the only one in the place.
    async fn open(&self) -> anyhow::Result<OpenRepository> {
        let client: Client = self.connection.client()?;
        let place = self.place.open(&client).await?;
        let path = match &self.path {
            Some(path) => place.path(path)?,
            None => self.only_repository(&place).await?,
        };
        Ok(OpenRepository { place, path, json: self.connection.json })
    }

    async fn only_repository(&self, place: &PlaceWithHome) -> anyhow::Result<AbsolutePath> {
        let found = place.remote.run(&GitRepositories {}).await?.value;
        let option = self.place.vm().map(|vm| format!(" --vm {vm}")).unwrap_or_default();
        let at = self.place.vm().map_or_else(|| "the workspace".to_owned(), |vm| format!("the VM {vm}"));
        match found.repositories.as_slice() {
            [only] if !found.truncated => {
                Ok(AbsolutePath::parse("PATH", &only.path, only.path_encoding.unwrap_or_default())?)
            }
            [] => Err(UsageError(format!(
                "{at} has no repository: `skep git init PATH{option}` or `skep git clone SOURCE{option}` creates one; \
                 name one in a deeper folder with -C PATH"
            ))
            .into()),
            several => {
                let names: Vec<_> = several.iter().take(MAX_LISTED_REPOSITORIES).map(|one| output::visible(&one.path)).collect();
                let more = if found.truncated || several.len() > MAX_LISTED_REPOSITORIES { ", ..." } else { "" };
                let names = names.join(", ");
                Err(UsageError(format!("{at} has several repositories; name one with -C: {names}{more}")).into())
            }
        }
    }
}

/// Maximum number of repositories listed in an error message.
const MAX_LISTED_REPOSITORIES: usize = 20;

impl OpenRepository {
    /// Runs an operation in the repository's place.
    async fn run<O: WorkspaceEndpoint>(&self, operation: &O) -> anyhow::Result<Answered<O::Answer>> {
        Ok(self.place.remote.run(operation).await?)
    }

    /// The repository, for an operation on it.
    fn path(&self) -> AbsolutePath {
        self.path.clone()
    }

    /// Prints an answer as JSON or with `show`.
    fn print<T: DeserializeOwned>(
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
        Verb::Show(verb) => verb.run().await,
        Verb::Fetch(verb) => verb.run().await,
        Verb::Merge(verb) => verb.run().await,
        Verb::Tag(verb) => verb.run().await,
        Verb::Remote(verb) => verb.run().await,
        Verb::Push(verb) => verb.run().await,
        Verb::Pull(verb) => verb.run().await,
        Verb::Credentials(verb) => verb.run().await,
    }
}
