//! What callers ask of a repository.

use serde::Serialize;
use skep_api::git::Person;

/// What is compared; nothing given: the work tree with what is staged.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DiffQuery {
    /// What is staged with the current commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<bool>,
    /// A commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Only this file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Lines around each change; 3 unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

/// Which commits, newest first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogQuery {
    /// Where to begin; the current commit unless given.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Only those that touch this file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Commits on the page; 50 unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A commit to be made.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CommitRequest {
    /// What it says.
    pub message: String,
    /// Who wrote it; the key unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Person>,
    /// With all changes of files that git knows.
    pub all: bool,
    /// In the place of the current commit.
    pub amend: bool,
    /// Also where it changes nothing.
    pub allow_empty: bool,
}

/// Where a branch goes, or comes from; what is not given is the branch's upstream, or `origin`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Upstream {
    /// A remote's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// What is cloned.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CloneRequest {
    /// An https or ssh URL, or an absolute path.
    pub url: String,
    /// Where the path is: `server`, or a VM; in the place of the clone where `None`.
    pub from: Option<String>,
    /// The branch that is checked out; the source's own where `None`.
    pub branch: Option<String>,
    /// Only so many commits of its history.
    pub depth: Option<u32>,
}
