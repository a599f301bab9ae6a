//! `skep git status|diff|log|show`.

use std::process::ExitCode;

use clap::Args;
use skep_api::git::{GitDiff, GitLog, GitShow, GitStatus};

use super::{RepositoryOptions, show};
use crate::output;

/// Show staged, modified and untracked files.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Status {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        opened.print(&opened.run(&GitStatus { path: opened.path() }).await?, show::status)
    }
}

/// Show differences between work tree and index, or between the given commits.
#[derive(Debug, Args)]
pub(super) struct DiffVerb {
    /// Commit to compare with [default: the index].
    from: Option<String>,
    /// Second commit to compare with, instead of the work tree.
    to: Option<String>,
    /// Compare the index with the current commit.
    #[arg(long, alias = "cached")]
    staged: bool,
    /// Show only this file or folder.
    #[arg(long, value_name = "PATH")]
    file: Option<String>,
    /// Number of lines of context.
    #[arg(short = 'U', long, value_name = "LINES", default_value_t = 3)]
    context: u32,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl DiffVerb {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let diff = GitDiff {
            path: Some(opened.path()),
            staged: self.staged,
            from: self.from,
            to: self.to,
            file: self.file,
            context: self.context,
        };
        let diff = opened.run(&diff).await?;
        if diff.truncated && !opened.json {
            output::eprint_line("skep: the diff is too long and was truncated; limit it with --file");
        }
        opened.print(&diff, |diff| output::bytes(output::visible_lines(&diff.diff).as_bytes()))
    }
}

/// Show commits, newest first.
#[derive(Debug, Args)]
pub(super) struct LogVerb {
    /// Commit or branch to start from [default: the current commit].
    revision: Option<String>,
    /// Show only commits that change this file or folder.
    #[arg(long, value_name = "PATH")]
    file: Option<String>,
    /// Maximum number of commits.
    #[arg(short = 'n', long, default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl LogVerb {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        let log = GitLog {
            path: Some(opened.path()),
            revision: self.revision,
            file: self.file,
            limit: self.limit,
            cursor: None,
        };
        opened.print(&opened.run(&log).await?, show::log)
    }
}

/// Show a commit and its changes, or a file at a commit.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Commit, branch or tag [default: the current commit]; REVISION:FILE prints that file.
    #[arg(value_name = "REVISION[:FILE]")]
    revision: Option<String>,
    #[command(flatten)]
    at: RepositoryOptions,
}

impl Show {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open().await?;
        // Revision names cannot contain a colon.
        let (revision, file) =
            match self.revision.as_deref().map(|text| text.split_once(':').unwrap_or((text, ""))) {
                None => (None, None),
                Some((revision, file)) => (
                    Some(revision).filter(|text| !text.is_empty()),
                    Some(file).filter(|text| !text.is_empty()),
                ),
            };
        let show = GitShow {
            path: Some(opened.path()),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        };
        let shown = opened.run(&show).await?;
        let cut = shown.value.file.as_ref().is_some_and(|file| file.truncated)
            || shown.value.changes.as_ref().is_some_and(|changes| changes.truncated);
        if cut && !opened.json {
            output::eprint_line("skep: the output is too long and was truncated");
        }
        opened.print(&shown, show::shown)
    }
}
