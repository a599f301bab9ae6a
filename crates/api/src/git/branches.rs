//! Branches: list, create, delete and check out.

use serde::{Deserialize, Serialize};

use super::{CHECK_OUT, READ, WRITE};
use crate::{
    Failure,
    endpoint::{Route, Success, WorkspaceEndpoint, check_argument},
    path::AbsolutePath,
};

/// Lists the branches of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitBranches {
    /// The repository. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// Whether to include remote-tracking branches, as they were last fetched.
    #[serde(default)]
    pub remote: bool,
}

impl WorkspaceEndpoint for GitBranches {
    const ROUTE: Route = Route {
        path: "/api/git/branch",
        id: "git_branches",
        summary: "List branches",
        description: "Also shows which one is checked out.",
        success: Success::Done("The branches"),
        ..READ
    };
}

/// A branch of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Branch {
    /// The name; a remote-tracking branch begins with the name of the remote.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub name: String,
    /// The hash of the commit that the branch is at.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// The upstream of the branch.
    #[cfg_attr(feature = "openapi", schema(example = "origin/main"))]
    pub upstream: Option<String>,
    /// The number of commits that the branch has and the upstream lacks; null without an upstream.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub ahead: Option<u64>,
    /// The number of commits that the upstream has and the branch lacks; null without an upstream.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub behind: Option<u64>,
    /// Whether this is a remote-tracking branch, which shows the state of the last fetch.
    pub remote: bool,
}

/// The branches of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Branches {
    /// The current branch, which may not have a commit yet; null if none is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub current: Option<String>,
    /// Whether a commit is checked out instead of a branch.
    pub detached: bool,
    /// The branches, sorted by name.
    pub branches: Vec<Branch>,
    /// Whether the list was cut off at 16 MiB of JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub truncated: bool,
}

/// Creates or deletes a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = BranchBody))]
pub struct GitChangeBranch {
    /// The repository, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The name of the branch.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub name: String,
    /// The start of the branch. Default: the current commit.
    #[serde(default)]
    pub from: Option<String>,
    /// Whether to delete the branch.
    #[serde(default)]
    pub delete: bool,
    /// Whether to delete it even if its commits are on no other branch.
    #[serde(default)]
    pub force: bool,
}

impl WorkspaceEndpoint for GitChangeBranch {
    const ROUTE: Route = Route {
        path: "/api/git/branch",
        id: "git_change_branch",
        summary: "Create or delete a branch",
        description: "A new branch is not checked out.",
        example: r#"{"path": "/srv/workspace/project", "name": "topic"}"#,
        success: Success::Done("It was created or deleted"),
        ..WRITE
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("name", &self.name)
    }
}

/// The result of creating or deleting a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BranchChanged {
    /// The name of the branch.
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub name: String,
    /// The hash of the commit that the branch is or was at.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub commit: String,
    /// Whether the branch was deleted.
    pub deleted: bool,
}

/// Checks out a branch or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CheckoutBody))]
pub struct GitCheckout {
    /// The work tree or a folder in it, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// A branch, a tag or a commit.
    #[serde(rename = "ref")]
    #[cfg_attr(feature = "openapi", schema(example = "topic"))]
    pub revision: String,
    /// Whether to create the branch from the current commit.
    #[serde(default)]
    pub create: bool,
}

impl WorkspaceEndpoint for GitCheckout {
    const ROUTE: Route = Route {
        path: "/api/git/checkout",
        id: "git_checkout",
        summary: "Check out a branch or a commit",
        description: "Uncommitted changes are kept; if they conflict with the checkout, it is refused with 409.",
        example: r#"{"path": "/srv/workspace/project", "ref": "topic", "create": true}"#,
        success: Success::Done("What is checked out"),
        ..CHECK_OUT
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("ref", &self.revision)
    }
}

/// The result of a checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckedOut {
    /// The branch that is checked out; null if a commit was requested.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The hash of the current commit.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
    /// Whether a commit is checked out instead of a branch.
    pub detached: bool,
}
