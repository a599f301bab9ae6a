//! Parameters of git requests.

use serde::Serialize;
use skep_api::git::Person;

/// The states that a diff compares. Default: the index with the work tree.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DiffQuery {
    /// Whether the index is compared with the last commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<bool>,
    /// The older state: a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The newer state: a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Restricts the diff to this file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The number of context lines around each change; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

/// Selects commits. They are returned newest first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogQuery {
    /// The commit to start from; default: the current commit.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Restricts the log to commits that changed this file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The maximum number of commits; default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A commit to create.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CommitRequest {
    /// The commit message.
    pub message: String,
    /// The author; default: the name of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Person>,
    /// Whether changes of tracked files are staged first.
    pub all: bool,
    /// Whether the commit replaces the current one.
    pub amend: bool,
    /// Whether a commit without changes is allowed.
    pub allow_empty: bool,
}

/// The remote branch of a push or a pull. Default: the upstream of the branch, or `origin`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Upstream {
    /// The name of the remote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The name of the branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// The source of a clone.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CloneRequest {
    /// An https or ssh URL, or an absolute path.
    pub url: String,
    /// The workspace that `url` is a path of: `server` or a VM; `None` is the workspace of the clone.
    pub from: Option<String>,
    /// The branch to check out; the current branch of the source if `None`.
    pub branch: Option<String>,
    /// The maximum number of commits of history; all if `None`.
    pub depth: Option<u32>,
}
