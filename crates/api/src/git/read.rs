//! Operations that read repositories: status, differences and commits.

use serde::{Deserialize, Serialize};

use super::{MAX_LOG_COMMITS, READ};
use crate::{
    Failure,
    endpoint::{Route, Success, WorkspaceEndpoint, check_argument, check_range, invalid},
    path::AbsolutePath,
};

/// Commits on a page without `limit`.
const DEFAULT_LOG: u32 = 50;
/// Lines around a change without `context`, and at most.
const DEFAULT_CONTEXT: u32 = 3;
const MAX_CONTEXT: u32 = 10_000;

/// Lists the repositories of a workspace: a root or the initial folder of commands if it is a repository, otherwise the
/// repositories directly below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitRepositories {}

impl WorkspaceEndpoint for GitRepositories {
    const ROUTE: Route = Route {
        path: "/api/git/repositories",
        id: "git_repositories",
        summary: "List repositories",
        description: "Lists the roots that are repositories, or else the repositories directly below the roots, in a \
            VM also below `/root`. If there is only one, operations with an optional `path` use it by \
            default.",
        success: Success::Done("The repositories"),
        paths: &[],
        ..READ
    };
}

/// Reports the changes in a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitStatus {
    /// The repository or a folder in its work tree, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
}

impl WorkspaceEndpoint for GitStatus {
    const ROUTE: Route = Route {
        path: "/api/git/status",
        id: "git_status",
        summary: "Show the status",
        description: "Returns the branch, its upstream, and every file that is staged, modified, untracked or in \
            conflict.",
        success: Success::Done("The status"),
        ..READ
    };
}

/// Compares two states of a repository's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitDiff {
    /// The repository. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// Whether to compare the index instead of the work tree.
    #[serde(default)]
    pub staged: bool,
    /// The older state: a commit, branch or tag. Default: the index, or with `staged` the last commit.
    #[serde(default)]
    pub from: Option<String>,
    /// The newer state. Default: the work tree.
    #[serde(default)]
    pub to: Option<String>,
    /// Only this file or folder, relative to the top of the repository.
    #[serde(default)]
    pub file: Option<String>,
    /// Lines around each change; default 3.
    #[serde(default = "default_context")]
    #[cfg_attr(feature = "openapi", schema(maximum = 10000))]
    pub context: u32,
}

const fn default_context() -> u32 {
    DEFAULT_CONTEXT
}

impl WorkspaceEndpoint for GitDiff {
    const ROUTE: Route = Route {
        path: "/api/git/diff",
        id: "git_diff",
        summary: "Compare two states",
        description: "`diff` is cut at 16 MiB, which `truncated` indicates. In the work tree, a file in conflict is compared \
            with the version of the current branch; what is staged has no files in conflict.",
        success: Success::Done("The differences"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_file(self.file.as_deref())?;
        check_range("context", self.context, 0..=MAX_CONTEXT)
    }
}

/// Lists commits, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitLog {
    /// The repository. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
    /// The commit, branch or tag to begin with. Default: the current commit.
    #[serde(rename = "ref")]
    #[serde(default)]
    pub revision: Option<String>,
    /// Only commits that changed this file or folder, relative to the top of the repository.
    #[serde(default)]
    pub file: Option<String>,
    /// Commits on the page, 1 to 1,000; default 50.
    #[serde(default = "default_log")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: u32,
    /// `next_cursor` of the previous page. Commits that were made since do not change the next pages.
    #[serde(default)]
    pub cursor: Option<String>,
}

const fn default_log() -> u32 {
    DEFAULT_LOG
}

impl WorkspaceEndpoint for GitLog {
    const ROUTE: Route = Route {
        path: "/api/git/log",
        id: "git_log",
        summary: "List commits",
        description: "Returns a page of commits, newest first; an empty list if there is no commit yet.",
        success: Success::Done("A page of commits"),
        ..READ
    };

    fn check(&self) -> Result<(), Failure> {
        check_file(self.file.as_deref())?;
        check_range("limit", self.limit, 1..=MAX_LOG_COMMITS)
    }
}

/// Checks the path of a file relative to the top of a repository.
pub(super) fn check_file(file: Option<&str>) -> Result<(), Failure> {
    match file {
        Some("") => invalid("`file` is empty; name a file or a folder, or leave it out"),
        Some(file) => check_argument("file", file),
        None => Ok(()),
    }
}
