//! `skep git branch|add|commit|checkout|reset|stash|worktree`.

use std::{
    io::{self, IsTerminal, Read},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use skep_api::git::{
    GitAdd, GitBranches, GitChangeBranch, GitChangeWorktree, GitCheckout, GitCommit, GitReset, GitStash,
    GitWorktrees, Person, ResetMode, StashAction,
};

use super::{RepositoryOptions, show};
use crate::output;

/// List branches; with a name, create or delete that branch.
#[derive(Debug, Args)]
pub(super) struct Branch {
    /// Branch to create, or to delete with -d.
    name: Option<String>,
    /// Commit or branch to start from [default: the current commit].
    #[arg(requires = "name")]
    from: Option<String>,
    /// Also list remote branches.
    #[arg(short, long, conflicts_with = "name")]
    all: bool,
    /// Delete the branch.
    #[arg(short, long, requires = "name", conflicts_with = "from")]
    delete: bool,
    /// Delete the branch even if no other branch contains its commits.
    #[arg(long, requires = "delete")]
    force: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Branch {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let Some(name) = self.name else {
            let list = GitBranches { path: Some(opened.path()), remote: self.all };
            return opened.print(&opened.run(&list).await?, show::branches);
        };
        let change = GitChangeBranch {
            path: opened.path(),
            name,
            from: self.from,
            delete: self.delete,
            force: self.force,
        };
        opened.print(&opened.run(&change).await?, |branch| {
            let verb = if branch.deleted { "deleted; it was" } else { "created" };
            output::line(&format!("{} {verb} at {}", branch.name, show::short(&branch.commit)))
        })
    }
}

/// Stage files.
#[derive(Debug, Args)]
pub(super) struct Add {
    /// Files, relative to the top of the repository [default: all changes].
    files: Vec<String>,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Add {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let add = GitAdd { path: opened.path(), files: Some(self.files).filter(|files| !files.is_empty()) };
        opened.print(&opened.run(&add).await?, |added| show::changes("staged", &added.staged))
    }
}

/// Commit the staged changes.
#[derive(Debug, Args)]
pub(super) struct Commit {
    /// Commit message [default: read from standard input].
    #[arg(short, long)]
    message: Option<String>,
    /// Author [default: the name of the key].
    #[arg(long, value_name = "NAME <EMAIL>", value_parser = person)]
    author: Option<Person>,
    /// Stage all changes of tracked files first.
    #[arg(short, long)]
    all: bool,
    /// Replace the current commit.
    #[arg(long)]
    amend: bool,
    /// Commit even if nothing is staged.
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Commit {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let message = match self.message {
            Some(message) => message,
            None => {
                anyhow::ensure!(
                    !io::stdin().is_terminal(),
                    "the commit message is missing; give -m MESSAGE, or write it to standard input"
                );
                io::read_to_string(io::stdin().lock().take(1 << 20))
                    .context("the commit message on standard input is not UTF-8 text")?
            }
        };
        let opened = self.at.open().await?;
        let commit = GitCommit {
            path: opened.path(),
            message,
            author: self.author,
            all: self.all,
            amend: self.amend,
            allow_empty: self.allow_empty,
        };
        opened.print(&opened.run(&commit).await?, show::committed)
    }
}

fn person(text: &str) -> Result<Person, String> {
    let parts = text.strip_suffix('>').and_then(|text| text.split_once(" <"));
    let (name, email) = parts.ok_or_else(|| format!("`{text}` is not an author; give `NAME <EMAIL>`"))?;
    Ok(Person { name: name.to_owned(), email: email.to_owned() })
}

/// Check out a branch or a commit.
#[derive(Debug, Args)]
pub(super) struct Checkout {
    /// Branch or commit.
    revision: String,
    /// Create the branch at the current commit first.
    #[arg(short = 'b', long)]
    create: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Checkout {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let checkout = GitCheckout { path: opened.path(), revision: self.revision, create: self.create };
        opened.print(&opened.run(&checkout).await?, |out| {
            let at = out.head.as_deref().map_or("no commit yet", show::short);
            output::line(&format!("on {} at {at}", out.branch.as_deref().unwrap_or("no branch")))
        })
    }
}

/// Reset the current branch to a commit, or unstage changes.
#[derive(Debug, Args)]
pub(super) struct Reset {
    /// Commit [default: the current one].
    to: Option<String>,
    /// What to reset.
    #[arg(long, value_enum, default_value = "mixed")]
    mode: Mode,
    #[command(flatten)]
    at: RepositoryOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// Only the branch.
    Soft,
    /// The branch and the index.
    Mixed,
    /// The branch, the index and the work tree.
    Hard,
}

impl Reset {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let mode = match self.mode {
            Mode::Soft => ResetMode::Soft,
            Mode::Mixed => ResetMode::Mixed,
            Mode::Hard => ResetMode::Hard,
        };
        opened.print(&opened.run(&GitReset { path: opened.path(), to: self.to, mode }).await?, |done| {
            output::line(&format!("at {}", show::short(&done.head)))
        })
    }
}

/// Stash changes, or restore them.
#[derive(Debug, Args)]
pub(super) struct Stash {
    /// What to do.
    #[arg(value_enum, default_value = "push")]
    action: Action,
    /// Message of a new stash.
    #[arg(short, long)]
    message: Option<String>,
    #[command(flatten)]
    at: RepositoryOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Action {
    Push,
    Pop,
    Apply,
    Drop,
    List,
}

impl Stash {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let action = match self.action {
            Action::Push => StashAction::Push,
            Action::Pop => StashAction::Pop,
            Action::Apply => StashAction::Apply,
            Action::Drop => StashAction::Drop,
            Action::List => StashAction::List,
        };
        let stash = GitStash { path: opened.path(), action, message: self.message };
        opened.print(&opened.run(&stash).await?, |stashes| {
            stashes.stashes.iter().try_for_each(|stash| {
                output::line(&format!("{} {}", stash.name, output::visible(&stash.message)))
            })
        })
    }
}

/// List, add or remove work trees.
#[derive(Debug, Args)]
pub(super) struct Worktree {
    /// Folder of the work tree to add, or to remove with --remove.
    worktree: Option<String>,
    /// Branch or commit to check out there [default: a new branch with the folder's name].
    #[arg(requires = "worktree")]
    revision: Option<String>,
    /// Remove the work tree.
    #[arg(long, requires = "worktree", conflicts_with = "revision")]
    remove: bool,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Worktree {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let Some(worktree) = &self.worktree else {
            let list = GitWorktrees { path: opened.path() };
            return opened.print(&opened.run(&list).await?, show::worktrees);
        };
        let change = GitChangeWorktree {
            path: opened.path(),
            worktree: opened.place.path(worktree)?,
            revision: self.revision,
            remove: self.remove,
        };
        opened.print(&opened.run(&change).await?, |changed| {
            let verb = if changed.removed { "removed" } else { "added" };
            output::line(&format!("{} {verb}", output::visible(&changed.worktree)))
        })
    }
}
