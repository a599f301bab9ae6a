//! Operations that stage, commit and reset.

use serde::{Deserialize, Serialize};

use super::{CHECK_OUT, Person, WRITE};
use crate::{
    endpoint::{Route, Success, WorkspaceEndpoint},
    path::AbsolutePath,
};

/// Stages files for the next commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AddBody))]
pub struct GitAdd {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// Literal names, relative to the top of the repository. Default: all files.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = json!(["src/main.rs"])))]
    pub files: Option<Vec<String>>,
}

impl WorkspaceEndpoint for GitAdd {
    const ROUTE: Route = Route {
        path: "/api/git/add",
        id: "git_add",
        summary: "Stage files",
        description: "Stages new, changed and removed files. The answer lists everything that is staged.",
        example: r#"{"path": "/srv/workspace/project", "files": ["src/main.rs"]}"#,
        success: Success::Done("What is staged"),
        body_limit: 16 << 20,
        ..WRITE
    };
}

/// Commits the staged changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CommitBody))]
pub struct GitCommit {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The message.
    #[cfg_attr(feature = "openapi", schema(example = "Say hello"))]
    pub message: String,
    /// The author. Default: the calling key.
    #[serde(default)]
    pub author: Option<Person>,
    /// Whether to stage the changes of tracked files first.
    #[serde(default)]
    pub all: bool,
    /// Whether to replace the last commit.
    #[serde(default)]
    pub amend: bool,
    /// Whether to allow a commit without changes.
    #[serde(default)]
    pub allow_empty: bool,
}

impl WorkspaceEndpoint for GitCommit {
    const ROUTE: Route = Route {
        path: "/api/git/commit",
        id: "git_commit",
        summary: "Commit",
        description: "Commits what is staged. The committer is the calling key, and so is the author unless `author` \
            is given. Hooks do not run.",
        example: r#"{"path": "/srv/workspace/project", "message": "Say hello"}"#,
        success: Success::Created("The commit"),
        ..WRITE
    };
}

/// What a reset changes besides the current branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResetMode {
    /// Nothing else.
    Soft,
    /// The index.
    #[default]
    Mixed,
    /// The index and the work tree.
    Hard,
}

/// Moves the current branch to another commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ResetBody))]
pub struct GitReset {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The commit. Default: the current one.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "HEAD~1"))]
    pub to: Option<String>,
    /// What to reset besides the branch; default `mixed`.
    #[serde(default)]
    pub mode: ResetMode,
}

impl WorkspaceEndpoint for GitReset {
    const ROUTE: Route = Route {
        path: "/api/git/reset",
        id: "git_reset",
        summary: "Reset",
        description: "Moves the current branch to a commit. With `mode: hard`, uncommitted changes are lost.",
        example: r#"{"path": "/srv/workspace/project", "to": "HEAD~1"}"#,
        success: Success::Done("The new position of the branch"),
        ..CHECK_OUT
    };
}
