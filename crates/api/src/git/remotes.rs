//! Operations on remotes, and fetching from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Exported, NETWORK_LIMIT, NETWORK_REFUSALS, READ, WRITE};
use crate::{
    ErrorCode, Failure,
    endpoint::{Route, Success, WorkspaceEndpoint, check_argument},
    operation::{AddsFiles, AnswerLimit, HelperKind, Operation},
    path::AbsolutePath,
};

/// Lists the remotes of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitRemotes {
    /// The repository. Default: the only one of the place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "/srv/workspace/project"))]
    pub path: Option<AbsolutePath>,
}

impl WorkspaceEndpoint for GitRemotes {
    const ROUTE: Route = Route {
        path: "/api/git/remote",
        id: "git_remotes",
        summary: "List remotes",
        description: "`skep://server/PATH` and `skep://VM/PATH` are repositories in other places of this server.",
        success: Success::Done("The remotes"),
        ..READ
    };
}

/// A remote of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remote {
    /// The name of the remote.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub name: String,
    /// The URL of the remote, without user name and token.
    #[cfg_attr(feature = "openapi", schema(example = "https://git.example.com/project.git"))]
    pub url: String,
    /// The URL for pushes; null if it is `url`.
    pub push_url: Option<String>,
}

/// The remotes of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remotes {
    /// The remotes, sorted by name.
    pub remotes: Vec<Remote>,
    /// Whether the list was cut off at 16 MiB of JSON.
    pub truncated: bool,
}

/// Adds, changes or removes a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RemoteBody))]
pub struct GitChangeRemote {
    /// The repository, an absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/project"))]
    pub path: AbsolutePath,
    /// The name of the remote.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub name: String,
    /// `https://`, `ssh://`, a path, or `skep://server/PATH` and `skep://VM/PATH` of a repository in another place.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(example = "https://git.example.com/project.git"))]
    pub url: Option<String>,
    /// Whether to change the URL of an existing remote.
    #[serde(default)]
    pub replace: bool,
    /// Whether to remove the remote and its remote-tracking branches.
    #[serde(default)]
    pub remove: bool,
}

impl GitChangeRemote {
    /// The change.
    ///
    /// # Errors
    /// `invalid_value` if `url`, `replace` and `remove` do not go together.
    pub fn change(&self) -> Result<RemoteChange<'_>, Failure> {
        match (&self.url, self.replace, self.remove) {
            (Some(url), false, false) => Ok(RemoteChange::Add(url)),
            (Some(url), true, false) => Ok(RemoteChange::SetUrl(url)),
            (None, false, true) => Ok(RemoteChange::Remove),
            _ => Err(Failure::new(
                ErrorCode::InvalidValue,
                "give `url`, with `replace` for an existing remote, or `remove` alone",
            )),
        }
    }
}

impl WorkspaceEndpoint for GitChangeRemote {
    const ROUTE: Route = Route {
        path: "/api/git/remote",
        id: "git_change_remote",
        summary: "Add, change or remove a remote",
        description: "With `url` the remote is added, or with `url` and `replace` its URL is changed. Nothing is \
            fetched.",
        example: r#"{"path": "/srv/workspace/project", "name": "origin", "url": "https://git.example.com/project.git"}"#,
        success: Success::Done("It was added, changed or removed"),
        refusals: NETWORK_REFUSALS,
        ..WRITE
    };

    fn check(&self) -> Result<(), Failure> {
        check_argument("name", &self.name)?;
        check_argument("url", self.url.as_deref().unwrap_or_default())?;
        self.change().map(drop)
    }
}

/// A change of a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteChange<'a> {
    /// Adds the remote with this URL.
    Add(&'a str),
    /// Changes the URL of the remote.
    SetUrl(&'a str),
    /// Removes the remote and its remote-tracking branches.
    Remove,
}

/// The result of adding, changing or removing a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoteChanged {
    /// The name of the remote.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub name: String,
    /// The URL of the remote; null if it was removed.
    #[cfg_attr(feature = "openapi", schema(example = "https://git.example.com/project.git"))]
    pub url: Option<String>,
    /// Whether the remote was removed.
    pub removed: bool,
}

/// Updates remote-tracking branches and tags from an export of the remote by another workspace. The pack follows the
/// request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitImportFetched {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of the remote.
    pub remote: String,
    /// Whether remote-tracking branches are deleted if the remote no longer has the branch.
    pub prune: bool,
    /// The answer of the export.
    pub exported: Exported,
}

/// A remote-tracking branch or a tag that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchedRef {
    /// The name: `origin/main` for a branch, the plain name for a tag.
    #[cfg_attr(feature = "openapi", schema(example = "origin/main"))]
    pub name: String,
    /// The previous commit; null if the reference is new.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub from: Option<String>,
    /// The new commit; null if the reference was deleted.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub to: Option<String>,
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchedRefs {
    /// The name of the remote.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: String,
    /// The changed branches and tags.
    pub changed: Vec<FetchedRef>,
    /// Whether the list was cut off at 16 MiB of JSON.
    pub truncated: bool,
}

impl Operation for GitImportFetched {
    const NAME: &'static str = "git-take";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = FetchedRefs;

    fn time_limit(&self) -> Duration {
        NETWORK_LIMIT + super::LOCAL_ANSWER_LIMIT
    }

    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::GATHERED
    }

    fn adds_files(&self) -> AddsFiles {
        AddsFiles::Always
    }
}
