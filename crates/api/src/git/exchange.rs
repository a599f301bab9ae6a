//! Push and pull for a repository in a VM, split so that no token enters the VM: the VM plans the exchange and packs
//! or receives the objects, and the server talks to the remote.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GitReach, NETWORK_LIMIT, Person, PullStrategy, Pulled};
use crate::{
    operation::{AddsFiles, HelperKind, Operation},
    path::AbsolutePath,
};

/// Plans a push or a pull: determines the remote, the branch and the commits that the VM has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitExchange {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of a remote; if `None` the branch's remote, or `origin`.
    pub remote: Option<String>,
    /// For a push the local branch, for a pull the remote branch.
    pub branch: Option<String>,
    /// Whether the exchange is a push; otherwise it is a pull.
    pub pushes: bool,
}

/// The plan of an exchange. It comes from the VM and is untrusted: the code that acts on it must validate it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangePlan {
    /// The name of the remote.
    pub remote: String,
    /// The URL of the remote.
    pub url: String,
    /// Whether `url` is a path in the same workspace.
    pub is_local: bool,
    /// The name of the branch.
    pub branch: String,
    /// For a push: the commit of the local branch.
    pub commit: Option<String>,
    /// The commit of the remote-tracking branch.
    pub last_seen: Option<String>,
    /// Commits that the VM already has.
    pub has: Vec<String>,
    /// Commits in `has` whose parents are missing, in a shallow repository. Older agents reject shallow repositories
    /// and never send this field.
    #[serde(default)]
    pub boundary: Vec<String>,
}

/// Packs a commit with the history that the repository has of it. The pack follows the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitPack {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The hash of the commit.
    pub commit: String,
}

/// Pushes the commit of a pack to a remote. The pack follows the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitSend {
    /// The URL of the remote.
    pub url: String,
    /// Whether `url` is a path in the workspace that runs this operation.
    #[serde(default)]
    pub here: bool,
    /// The name of the remote branch.
    pub branch: String,
    /// The new commit of the remote branch.
    pub commit: String,
    /// The commit of the remote-tracking branch.
    pub last_seen: Option<String>,
    /// Whether the remote branch may lose commits, provided that it is still at `last_seen`.
    pub force_with_lease: bool,
    /// Commits whose parents are not in the pack, because the remote has them.
    pub boundary: Vec<String>,
    /// The addresses that git may connect to.
    pub reach: GitReach,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The previous commit of the remote branch; `None` if the branch is new.
    pub from: Option<String>,
    /// Whether the push created the remote branch.
    pub created: bool,
}

/// Records a completed push in the VM's repository: updates the remote-tracking branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitNotePush {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of the remote.
    pub remote: String,
    /// The name of the branch.
    pub branch: String,
    /// The commit that the remote branch is at now.
    pub commit: String,
    /// Whether the remote branch becomes the upstream of the branch.
    pub set_upstream: bool,
}

/// An empty answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyAnswer {}

/// Fetches a branch from a remote and packs the new objects. The pack follows the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFetch {
    /// The URL of the remote.
    pub url: String,
    /// Whether `url` is a path in the workspace that runs this operation.
    #[serde(default)]
    pub here: bool,
    /// The name of the remote branch.
    pub branch: String,
    /// Commits that the receiver of the pack already has.
    pub has: Vec<String>,
    /// Commits in `has` whose parents the receiver does not have.
    pub boundary: Vec<String>,
    /// The addresses that git may connect to.
    pub reach: GitReach,
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// The hash of the commit that the remote branch is at.
    pub commit: String,
}

/// Combines a fetched commit with the current branch. A pack with the new objects follows the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitJoin {
    /// The work tree; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of the remote.
    pub remote: String,
    /// The name of the remote branch.
    pub branch: String,
    /// The commit of the remote branch.
    pub commit: String,
    /// How local and remote commits are combined.
    pub strategy: PullStrategy,
    /// The committer of a merge or of rebased commits.
    pub committer: Person,
}

macro_rules! operations {
    ($($operation:ident = $name:literal -> $answer:ident, $length:expr, $adds:expr;)+) => {
        $(impl Operation for $operation {
            const NAME: &'static str = $name;
            const HELPER: Option<HelperKind> = Some(HelperKind::Git);
            type Answer = $answer;

            fn time_limit(&self) -> Duration {
                NETWORK_LIMIT + super::LOCAL_ANSWER_LIMIT
            }

            fn answer_limit(&self) -> crate::AnswerLimit {
                $length
            }

            fn adds_files(&self) -> AddsFiles {
                let adds: fn(&Self) -> AddsFiles = $adds;
                adds(self)
            }
        })+
    };
}

/// Enough for about ten thousand hashes.
const PLAN: crate::AnswerLimit = crate::AnswerLimit { bytes: 1 << 20, values: 1 << 14 };
const SHORT: crate::AnswerLimit = crate::AnswerLimit::SHORT;

operations! {
    GitExchange = "git-exchange" -> ExchangePlan, PLAN, |_| AddsFiles::Never;
    GitPack = "git-pack" -> EmptyAnswer, SHORT, |_| AddsFiles::Never;
    GitSend = "git-send" -> Sent, SHORT, |_| AddsFiles::Always;
    GitNotePush = "git-note-push" -> EmptyAnswer, SHORT, |_| AddsFiles::Never;
    GitFetch = "git-fetch" -> Fetched, SHORT, |fetch| AddsFiles::unless(fetch.here);
    GitJoin = "git-join" -> Pulled, SHORT, |_| AddsFiles::Always;
}
