//! Operations on remotes, and fetching from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Exported, GitReach, NETWORK_LIMIT};
use crate::{
    operation::{AnswerLimit, HelperKind, Operation},
    path::AbsolutePath,
};

/// Lists the remotes of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRemotes {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
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
pub struct GitChangeRemote {
    /// The repository.
    pub path: AbsolutePath,
    /// The name of the remote.
    pub name: String,
    /// The change.
    pub change: RemoteChange,
}

/// A change of a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteChange {
    /// Adds the remote with this URL.
    Add(String),
    /// Changes the URL of the remote.
    SetUrl(String),
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

/// Fetches all branches of a remote. The current branch does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFetchRemote {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of a remote; if `None` the branch's remote, or `origin`.
    pub remote: Option<String>,
    /// Whether remote-tracking branches are deleted if the remote no longer has the branch.
    pub prune: bool,
    /// The addresses that git may connect to.
    pub reach: GitReach,
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
}
