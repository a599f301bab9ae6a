//! `skep git branch|add|commit|checkout|reset|stash|worktree`.

use std::{
    io::{self, IsTerminal, Read},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use skep_api::git::{Person, ResetMode, StashAction};
use skep_client::CommitRequest;

use super::{Where, show};
use crate::output;

/// List branches; with a name make one, or delete it.
#[derive(Debug, Args)]
pub(super) struct Branch {
    /// A branch to make.
    name: Option<String>,
    /// What it begins at.
    #[arg(requires = "name")]
    from: Option<String>,
    /// Those of remotes too.
    #[arg(short, long, conflicts_with = "name")]
    all: bool,
    /// Delete the branch.
    #[arg(short, long, requires = "name", conflicts_with = "from")]
    delete: bool,
    /// Delete it though its commits are nowhere else.
    #[arg(long, requires = "delete")]
    force: bool,
    #[command(flatten)]
    at: Where,
}

impl Branch {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(self.name.is_none()).await?;
        let Some(name) = self.name else {
            return opened.tell(&opened.repository.branches(self.all).await?, show::branches);
        };
        let changed = if self.delete {
            opened.repository.delete_branch(&name, self.force).await?
        } else {
            opened.repository.make_branch(&name, self.from.as_deref()).await?
        };
        opened.tell(&changed, |branch| {
            let verb = if branch.deleted { "deleted, it was" } else { "made" };
            output::line(&format!("{} {verb} at {}", branch.name, show::short(&branch.commit)))
        })
    }
}

/// Stage files.
#[derive(Debug, Args)]
pub(super) struct Add {
    /// The files, below the repository's top [default: all].
    files: Vec<String>,
    #[command(flatten)]
    at: Where,
}

impl Add {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(false).await?;
        let files = (!self.files.is_empty()).then_some(self.files.as_slice());
        opened.tell(&opened.repository.add(files).await?, |added| show::changes("staged", &added.staged))
    }
}

/// Commit what is staged.
#[derive(Debug, Args)]
pub(super) struct Commit {
    /// What it says [default: what stands on standard input].
    #[arg(short, long)]
    message: Option<String>,
    /// Who wrote it [default: the key].
    #[arg(long, value_name = "NAME <EMAIL>", value_parser = person)]
    author: Option<Person>,
    /// With all changes of files that git knows.
    #[arg(short, long)]
    all: bool,
    /// In the place of the current commit.
    #[arg(long)]
    amend: bool,
    /// Also where it changes nothing.
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    at: Where,
}

impl Commit {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let message = match self.message {
            Some(message) => message,
            None => {
                anyhow::ensure!(!io::stdin().is_terminal(), "a commit says what it does; give -m MESSAGE");
                io::read_to_string(io::stdin().lock().take(1 << 20)).context("the input is no UTF-8 text")?
            }
        };
        let opened = self.at.open(false).await?;
        let request = CommitRequest {
            message,
            author: self.author,
            all: self.all,
            amend: self.amend,
            allow_empty: self.allow_empty,
        };
        opened.tell(&opened.repository.commit(&request).await?, show::committed)
    }
}

fn person(text: &str) -> Result<Person, String> {
    let parts = text.strip_suffix('>').and_then(|text| text.split_once(" <"));
    let (name, email) = parts.ok_or_else(|| format!("`{text}` is no author; give `NAME <EMAIL>`"))?;
    Ok(Person { name: name.to_owned(), email: email.to_owned() })
}

/// Put a branch or a commit into the work tree.
#[derive(Debug, Args)]
pub(super) struct Checkout {
    /// The branch, or the commit.
    revision: String,
    /// Make the branch first.
    #[arg(short = 'b', long)]
    create: bool,
    #[command(flatten)]
    at: Where,
}

impl Checkout {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(false).await?;
        opened.tell(&opened.repository.checkout(&self.revision, self.create).await?, |out| {
            let at = out.head.as_deref().map_or("no commit yet", show::short);
            output::line(&format!("on {} at {at}", out.branch.as_deref().unwrap_or("no branch")))
        })
    }
}

/// Put the current branch at another commit, or unstage.
#[derive(Debug, Args)]
pub(super) struct Reset {
    /// The commit [default: the current one].
    to: Option<String>,
    /// What is taken back.
    #[arg(long, value_enum, default_value = "mixed")]
    mode: Mode,
    #[command(flatten)]
    at: Where,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// The branch alone.
    Soft,
    /// What is staged too.
    Mixed,
    /// The work tree too.
    Hard,
}

impl Reset {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(false).await?;
        let mode = match self.mode {
            Mode::Soft => ResetMode::Soft,
            Mode::Mixed => ResetMode::Mixed,
            Mode::Hard => ResetMode::Hard,
        };
        opened.tell(&opened.repository.reset(self.to.as_deref(), mode).await?, |done| {
            output::line(&format!("at {}", show::short(&done.head)))
        })
    }
}

/// Put changes away, or bring them back.
#[derive(Debug, Args)]
pub(super) struct Stash {
    /// What is done.
    #[arg(value_enum, default_value = "push")]
    action: Action,
    /// What a new stash says.
    #[arg(short, long)]
    message: Option<String>,
    #[command(flatten)]
    at: Where,
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
        let opened = self.at.open(false).await?;
        let action = match self.action {
            Action::Push => StashAction::Push,
            Action::Pop => StashAction::Pop,
            Action::Apply => StashAction::Apply,
            Action::Drop => StashAction::Drop,
            Action::List => StashAction::List,
        };
        let stashes = opened.repository.stash(action, self.message.as_deref()).await?;
        opened.tell(&stashes, |stashes| {
            stashes.stashes.iter().try_for_each(|stash| {
                output::line(&format!("{} {}", stash.name, output::visible(&stash.message)))
            })
        })
    }
}

/// List work trees, add one, or remove it.
#[derive(Debug, Args)]
pub(super) struct Worktree {
    /// A folder to add as a work tree.
    worktree: Option<String>,
    /// What is put into it [default: a new branch of the folder's name].
    #[arg(requires = "worktree")]
    revision: Option<String>,
    /// Remove it.
    #[arg(long, requires = "worktree", conflicts_with = "revision")]
    remove: bool,
    #[command(flatten)]
    at: Where,
}

impl Worktree {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(false).await?;
        let Some(worktree) = &self.worktree else {
            return opened.tell(&opened.repository.worktrees().await?, show::worktrees);
        };
        let folder = opened.place.path(worktree)?;
        let changed =
            opened.repository.change_worktree(&folder, self.revision.as_deref(), self.remove).await?;
        opened.tell(&changed, |changed| {
            let verb = if changed.removed { "removed" } else { "added" };
            output::line(&format!("{} {verb}", output::visible(&changed.worktree)))
        })
    }
}
