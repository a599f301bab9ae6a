//! Work trees: list, add and remove.

use serde::{Deserialize, Serialize};

use super::{CHECK_OUT, READ};
use crate::{
    endpoint::{Route, Success, WorkspaceEndpoint},
    path::{AbsolutePath, PathEncoding},
};

/// Lists the work trees of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitWorktrees {
    /// The repository or a folder in its work tree, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
}

impl WorkspaceEndpoint for GitWorktrees {
    const ROUTE: Route = Route {
        path: "/api/git/worktree",
        id: "git_worktrees",
        summary: "List work trees",
        description: "The main one first.",
        success: Success::Done("The work trees"),
        ..READ
    };
}

/// A work tree of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Worktree {
    /// The folder of the work tree.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/topic"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The hash of the commit that is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// The branch that is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub branch: Option<String>,
    /// Whether a commit is checked out instead of a branch.
    pub detached: bool,
    /// Whether this is a bare repository, which has no files checked out.
    pub bare: bool,
}

/// The work trees of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Worktrees {
    /// The work trees, the main one first.
    pub worktrees: Vec<Worktree>,
    /// Whether the list was cut off at 16 MiB of JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// Adds or removes a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = WorktreeBody))]
pub struct GitChangeWorktree {
    /// The repository, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The folder of the work tree, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/topic"))]
    pub worktree: AbsolutePath,
    /// The commit, branch or tag to check out. Default: a new branch with the name of the folder.
    #[serde(rename = "ref")]
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub revision: Option<String>,
    /// Whether to remove the work tree.
    #[serde(default)]
    pub remove: bool,
}

impl WorkspaceEndpoint for GitChangeWorktree {
    const ROUTE: Route = Route {
        path: "/api/git/worktree",
        id: "git_change_worktree",
        summary: "Add or remove a work tree",
        description: "A work tree with uncommitted changes is not removed.",
        example: r#"{"path": "/srv/workspace/project", "worktree": "/srv/workspace/topic", "ref": "topic"}"#,
        success: Success::Done("It was added or removed"),
        paths: &["path", "worktree"],
        ..CHECK_OUT
    };
}

/// The result of adding or removing a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorktreeChanged {
    /// The folder of the work tree.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/topic"))]
    pub worktree: String,
    /// The encoding of `worktree`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The hash of the commit that is checked out; null if the work tree was removed.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// The branch that is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub branch: Option<String>,
    /// Whether the work tree was removed.
    pub removed: bool,
}
