//! Stashes.

use serde::{Deserialize, Serialize};

use super::WRITE;
use crate::{
    endpoint::{Route, Success, WorkspaceEndpoint},
    path::AbsolutePath,
};

/// Stashes changes, or applies them again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = StashBody))]
pub struct GitStash {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The operation.
    pub action: StashAction,
    /// The message of a new stash.
    #[serde(default)]
    pub message: Option<String>,
}

impl WorkspaceEndpoint for GitStash {
    const ROUTE: Route = Route {
        path: "/api/git/stash",
        id: "git_stash",
        summary: "Stash changes",
        description: "Stashes changes, applies or drops a stash, or lists them. The answer lists all stashes.",
        example: r#"{"path": "/srv/workspace/project", "action": "push"}"#,
        success: Success::Done("The stashes"),
        ..WRITE
    };
}

/// An operation on stashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StashAction {
    /// Stashes all changes, including untracked files.
    Push,
    /// Applies the newest stash and drops it.
    Pop,
    /// Applies the newest stash and keeps it.
    Apply,
    /// Drops the newest stash.
    Drop,
    /// Lists the stashes without a change.
    List,
}

/// A stash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stash {
    /// The name of the stash in git, such as `stash@{0}`.
    #[cfg_attr(feature = "openapi", schema(example = "stash@{0}"))]
    pub name: String,
    /// The hash of the stash.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The message of the stash.
    #[cfg_attr(feature = "openapi", schema(example = "On main: half done"))]
    pub message: String,
}

/// The stashes of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stashes {
    /// The stashes, newest first.
    pub stashes: Vec<Stash>,
    /// Whether the list was cut off at 16 MiB of JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}
