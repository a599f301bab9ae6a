//! Operations that exchange commits with a remote: push, pull and fetch.

use serde::{Deserialize, Serialize};

use super::{NETWORK_REFUSALS, WRITE};
use crate::{
    endpoint::{Route, Success, WorkspaceEndpoint},
    path::AbsolutePath,
};

/// A route that exchanges commits with a remote.
const TRANSFER: Route = Route { refusals: NETWORK_REFUSALS, uses_network: true, ..WRITE };

/// Pushes a branch to a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = PushBody))]
pub struct GitPush {
    /// The repository, an absolute path below a root. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// The name of a remote. Default: that of the branch, or `origin`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: Option<String>,
    /// The branch. Default: the current one.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// Whether to make the remote's branch the upstream of the branch.
    #[serde(default)]
    pub set_upstream: bool,
    /// Whether to overwrite the remote's branch if it is unchanged since it was last fetched.
    #[serde(default)]
    pub force_with_lease: bool,
}

impl WorkspaceEndpoint for GitPush {
    const ROUTE: Route = Route {
        path: "/api/git/push",
        id: "git_push",
        summary: "Push",
        description: "Sends a branch to a remote. A rejection by the remote is 409 with its message. Tokens are those \
            of `/api/git/credentials`. No hooks run, not even those of a local remote. For a repository in \
            a VM, the server takes the commits out of the VM and sends them: no token enters the VM.",
        example: r#"{"path": "/srv/workspace/project"}"#,
        success: Success::Done("The branch was pushed"),
        ..TRANSFER
    };
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pushed {
    /// The name of the remote.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: String,
    /// The name of the branch.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: String,
    /// The previous commit of the remote branch; null if the branch is new.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub from: Option<String>,
    /// The new commit of the remote branch.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub to: String,
    /// Whether the push created the remote branch.
    pub created: bool,
}

/// How a pull combines local and remote commits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PullStrategy {
    /// Fast-forward only: fails if there are local commits.
    #[default]
    FfOnly,
    /// With a merge commit.
    Merge,
    /// By rebasing the local commits onto the remote ones.
    Rebase,
}

/// Fetches a branch from a remote and combines it with the current branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = PullBody))]
pub struct GitPull {
    /// The repository, an absolute path below a root. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// The name of a remote. Default: that of the branch, or `origin`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: Option<String>,
    /// The remote's branch. Default: the upstream of the current branch.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// How to combine both branches; default `ff-only`.
    #[serde(default)]
    pub strategy: PullStrategy,
}

impl WorkspaceEndpoint for GitPull {
    const ROUTE: Route = Route {
        path: "/api/git/pull",
        id: "git_pull",
        summary: "Pull",
        description: "Fetches a branch and combines it with the current one. A conflict is refused with 409, and the \
            work tree stays as it was. For a repository in a VM, the server fetches the commits: no token \
            enters the VM.",
        example: r#"{"path": "/srv/workspace/project"}"#,
        success: Success::Done("The new commits"),
        ..TRANSFER
    };
}

/// The result of a pull or a merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pulled {
    /// The previous commit of the branch; null if there was none.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub from: Option<String>,
    /// The new commit of the branch.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub to: String,
    /// The number of commits that were added.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub commits: u64,
    /// The number of files that changed.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub files_changed: u64,
}

/// Fetches all branches of a remote. The current branch does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = FetchBody))]
pub struct GitFetchRemote {
    /// The repository, an absolute path below a root. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// The name of a remote. Default: that of the branch, or `origin`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: Option<String>,
    /// Whether to remove remote-tracking branches that no longer exist on the remote.
    #[serde(default)]
    pub prune: bool,
}

impl WorkspaceEndpoint for GitFetchRemote {
    const ROUTE: Route = Route {
        path: "/api/git/fetch",
        id: "git_fetch",
        summary: "Fetch",
        description: "Fetches all branches of a remote, and their tags. The current branch and the work tree stay \
            unchanged. For a repository in a VM, the server fetches the commits, as for a pull.",
        example: r#"{"path": "/srv/workspace/project"}"#,
        success: Success::Done("The changed branches and tags"),
        ..TRANSFER
    };
}
