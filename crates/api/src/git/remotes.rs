//! Remotes, and what is fetched from them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Exported, GitReach, NETWORK_LIMIT};
use crate::{
    operation::{AnswerLimit, HelperKind, Operation},
    path::AbsolutePath,
};

/// Lists remotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRemotes {
    /// The repository; the only one of the place where `None`.
    pub path: Option<AbsolutePath>,
}

/// A remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remote {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub name: String,
    /// Where it is, without a user or a token.
    #[cfg_attr(feature = "openapi", schema(example = "https://git.example.com/project.git"))]
    pub url: String,
    /// Where pushes go, where that is another URL.
    pub push_url: Option<String>,
}

/// The remotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Remotes {
    /// By name.
    pub remotes: Vec<Remote>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    pub truncated: bool,
}

/// Adds, changes or removes a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeRemote {
    /// The repository.
    pub path: AbsolutePath,
    /// The remote.
    pub name: String,
    /// What is done.
    pub change: RemoteChange,
}

/// What is done with a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteChange {
    /// It is added, with this URL.
    Add(String),
    /// It gets this URL.
    SetUrl(String),
    /// It is removed, with what was fetched from it.
    Remove,
}

/// A remote that was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoteChanged {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub name: String,
    /// Where it is; null where it was removed.
    #[cfg_attr(feature = "openapi", schema(example = "https://git.example.com/project.git"))]
    pub url: Option<String>,
    /// Whether it was removed.
    pub removed: bool,
}

/// Fetches all branches of a remote. The current branch stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFetchRemote {
    /// The repository; the only one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// A remote's name; that of the branch, or `origin`, where `None`.
    pub remote: Option<String>,
    /// Whether branches are forgotten that the remote has no longer.
    pub prune: bool,
    /// What may be reached.
    pub reach: GitReach,
}

/// Takes in what another place exported of a remote. Its pack follows the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitTake {
    /// The repository; the only one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// The remote.
    pub remote: String,
    /// Whether branches are forgotten that the remote has no longer.
    pub prune: bool,
    /// What was exported.
    pub exported: Exported,
}

/// A branch of a remote, or a tag, that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchedRef {
    /// `origin/main` of a branch, the name of a tag.
    #[cfg_attr(feature = "openapi", schema(example = "origin/main"))]
    pub name: String,
    /// What it was at; null where it is new.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub from: Option<String>,
    /// What it is at; null where it is gone.
    #[cfg_attr(feature = "openapi", schema(example = "8f0c2d1e5b7a49f3c6d8e0a1b2c3d4e5f6a7b8c9"))]
    pub to: Option<String>,
}

/// What came of a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchedRefs {
    /// The remote.
    #[cfg_attr(feature = "openapi", schema(example = "origin"))]
    pub remote: String,
    /// What changed.
    pub changed: Vec<FetchedRef>,
    /// Whether 16 MiB of JSON were reached, and there is more.
    pub truncated: bool,
}

impl Operation for GitTake {
    const NAME: &'static str = "git-take";
    const HELPER: Option<HelperKind> = Some(HelperKind::Git);
    type Answer = FetchedRefs;

    fn time_limit(&self) -> Duration {
        NETWORK_LIMIT + super::ANSWERED_WITHIN
    }

    fn answer_limit(&self) -> AnswerLimit {
        AnswerLimit::GATHERED
    }
}
