//! `skep git status|diff|log`.

use std::process::ExitCode;

use clap::Args;
use skep_client::{DiffQuery, LogQuery};

use super::{Where, show};
use crate::output;

/// Show staged, modified and untracked files.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    at: Where,
}

impl Status {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(false).await?;
        opened.tell(&opened.repository.status().await?, show::status)
    }
}

/// Show differences: of the work tree from the index, or of the named commits.
#[derive(Debug, Args)]
pub(super) struct DiffVerb {
    /// Commit to compare with.
    from: Option<String>,
    /// Second commit, to compare with instead of the work tree.
    to: Option<String>,
    /// Compare the index with the current commit.
    #[arg(long, alias = "cached")]
    staged: bool,
    /// Show only this file or folder.
    #[arg(long, value_name = "PATH")]
    file: Option<String>,
    /// Number of context lines.
    #[arg(short = 'U', long, value_name = "LINES", default_value_t = 3)]
    context: u32,
    #[command(flatten)]
    at: Where,
}

impl DiffVerb {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(true).await?;
        let query = DiffQuery {
            staged: self.staged.then_some(true),
            from: self.from,
            to: self.to,
            file: self.file,
            context: Some(self.context),
        };
        let diff = opened.repository.diff(&query).await?;
        if diff.truncated && !opened.json {
            output::say("skep: the diff is too long and was cut; limit it with --file");
        }
        opened.tell(&diff, |diff| output::bytes(output::visible_lines(&diff.diff).as_bytes()))
    }
}

/// Show commits, newest first.
#[derive(Debug, Args)]
pub(super) struct LogVerb {
    /// Commit or branch to start from.
    revision: Option<String>,
    /// Show only commits that change this file or folder.
    #[arg(long, value_name = "PATH")]
    file: Option<String>,
    /// Maximum number of commits.
    #[arg(short = 'n', long, default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    at: Where,
}

impl LogVerb {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let opened = self.at.open(true).await?;
        let query =
            LogQuery { revision: self.revision, file: self.file, limit: Some(self.limit), cursor: None };
        opened.tell(&opened.repository.log(&query).await?, show::log)
    }
}
