//! Operations that create repositories: init and clone.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{NETWORK_REFUSALS, WRITE};
use crate::{
    Failure,
    endpoint::{Route, Success, WorkspaceEndpoint, check_argument, check_range},
    exec::VmField,
    path::{AbsolutePath, PathEncoding},
};

/// Creates a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = InitBody))]
pub struct GitInit {
    /// Its folder, an absolute path below a root. Created if it is missing.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// Whether to create a bare repository, without a work tree.
    #[serde(default)]
    pub bare: bool,
}

impl WorkspaceEndpoint for GitInit {
    const ROUTE: Route = Route {
        path: "/api/git/init",
        id: "git_init",
        summary: "Create a repository",
        description: "Its first branch is `main`.",
        example: r#"{"path": "/srv/workspace/project"}"#,
        success: Success::Created("The repository"),
        ..WRITE
    };
}

/// The result of creating a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Initialized {
    /// The path of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The name of the initial branch.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: String,
}

/// Clones a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CloneBody))]
pub struct GitClone {
    /// `https://`, `ssh://`, or an absolute path below a root, in the place `from`, or else in the place of the clone.
    #[cfg_attr(feature = "openapi", schema(example = "https://git.example.com/project.git"))]
    pub url: String,
    /// The place of the path in `url`: `server`, or a VM, by process id, id or name.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "server"))]
    pub from: Option<VmField>,
    /// The folder to create, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The branch to check out. Default: that of the remote.
    #[serde(default)]
    pub branch: Option<String>,
    /// Clone only this many commits of the history.
    #[serde(default, deserialize_with = "crate::whole_number::optional")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64))]
    pub depth: Option<u32>,
}

impl WorkspaceEndpoint for GitClone {
    const ROUTE: Route = Route {
        path: "/api/git/clone",
        id: "git_clone",
        summary: "Clone",
        description: "Clones all branches and tags, with the source as the remote `origin`. Private and loopback \
            addresses need permission of the operator. With `from`, the source is a repository in the \
            workspace or in a VM, and the server relays its commits to the place `vm`; later pulls and \
            pushes of the clone work in the same way. For a clone over https or ssh into a VM, the server \
            fetches the commits: no token enters the VM, and it needs no network. `from` also needs the \
            scope `git:read`, and each VM `swarm:exec`. A failed clone leaves nothing behind.",
        example: r#"{"url": "https://git.example.com/project.git", "path": "/srv/workspace/project"}"#,
        success: Success::Created("The repository"),
        refusals: NETWORK_REFUSALS,
        uses_network: true,
        ..WRITE
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("url", &self.url)?;
        self.depth.map_or(Ok(()), |depth| check_range("depth", depth, 1..=u32::MAX))
    }

    /// With `from`, `url` is a path too. It is percent-encoded in the value of the operation.
    fn path_fields(fields: &Map<String, Value>) -> &'static [&'static str] {
        if fields.contains_key("from") { &["path", "url"] } else { Self::ROUTE.paths }
    }
}

/// The result of a clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cloned {
    /// The path of the repository.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/project"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The branch that is checked out.
    #[cfg_attr(feature = "openapi", schema(example = "main"))]
    pub branch: Option<String>,
    /// The hash of its commit; null if the remote has no commits.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub head: Option<String>,
}
