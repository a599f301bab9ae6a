//! What a push or a pull of a VM's repository is made of: the VM says what it wants and sends or takes objects; the
//! server speaks to the remote. So no token enters a VM.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GitReach, NETWORK_LIMIT, Person, PullStrategy, Pulled};
use crate::{
    operation::{HelperKind, Operation},
    path::AbsolutePath,
};

/// Says what would be exchanged with which remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitExchange {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// A remote's name; that of the branch, or `origin`, where `None`.
    pub remote: Option<String>,
    /// The branch: of a push its own, of a pull the remote's.
    pub branch: Option<String>,
    /// Whether it is a push.
    pub pushes: bool,
}

/// What would be exchanged. All of it is the VM's word, to be looked at by whoever acts on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangePlan {
    /// The remote's name.
    pub remote: String,
    /// Where it is.
    pub url: String,
    /// Whether that is a path in the same place.
    pub is_local: bool,
    /// The branch.
    pub branch: String,
    /// Of a push: what the branch is at.
    pub commit: Option<String>,
    /// What the remote's branch was at when it was last seen.
    pub last_seen: Option<String>,
    /// Commits that are there already.
    pub has: Vec<String>,
    /// Those whose parents are not there, in a shallow repository. An agent of before refuses those, and tells of none.
    #[serde(default)]
    pub boundary: Vec<String>,
}

/// Packs a commit with all that it stands on, as far as that is there. The pack follows the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitPack {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// Its hash.
    pub commit: String,
}

/// Sends the commit of a pack to a remote. The pack follows the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitSend {
    /// Where the remote is.
    pub url: String,
    /// Whether `url` is a path of the place that sends.
    #[serde(default)]
    pub here: bool,
    /// The branch there.
    pub branch: String,
    /// What it shall be at.
    pub commit: String,
    /// What the remote's branch was at when it was last seen.
    pub last_seen: Option<String>,
    /// Whether the remote's branch may lose commits, where it is as it was last seen.
    pub force_with_lease: bool,
    /// Commits whose parents the pack lacks, since they are the remote's already.
    pub boundary: Vec<String>,
    /// What may be reached.
    pub reach: GitReach,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// What the branch was at there.
    pub from: Option<String>,
    /// Whether it is new there.
    pub created: bool,
}

/// Notes what a push did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitNotePush {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// The remote.
    pub remote: String,
    /// The branch.
    pub branch: String,
    /// What it is at there.
    pub commit: String,
    /// Whether the branch follows it from now on.
    pub set_upstream: bool,
}

/// It is so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {}

/// Fetches a branch from a remote, and packs what is new. The pack follows the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFetch {
    /// Where the remote is.
    pub url: String,
    /// Whether `url` is a path of the place that fetches.
    #[serde(default)]
    pub here: bool,
    /// The branch there.
    pub branch: String,
    /// Commits that are known.
    pub has: Vec<String>,
    /// Those whose parents are neither known nor wanted.
    pub boundary: Vec<String>,
    /// What may be reached.
    pub reach: GitReach,
}

/// What the branch is at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Its hash.
    pub commit: String,
}

/// Joins a commit with the current branch. A pack of what is new follows the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitJoin {
    /// The work tree; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// The remote.
    pub remote: String,
    /// The remote's branch.
    pub branch: String,
    /// What it is at.
    pub commit: String,
    /// How.
    pub strategy: PullStrategy,
    /// Who commits a merge.
    pub committer: Person,
}

macro_rules! operations {
    ($($operation:ident = $name:literal -> $answer:ident, $length:expr;)+) => {
        $(impl Operation for $operation {
            const NAME: &'static str = $name;
            const HELPER: Option<HelperKind> = Some(HelperKind::Git);
            type Answer = $answer;

            fn time_limit(&self) -> Duration {
                NETWORK_LIMIT + super::ANSWERED_WITHIN
            }

            fn answer_limit(&self) -> crate::AnswerLimit {
                $length
            }
        })+
    };
}

/// Of a plan with some ten thousand hashes.
const PLAN: crate::AnswerLimit = crate::AnswerLimit { bytes: 1 << 20, values: 1 << 14 };
const SHORT: crate::AnswerLimit = crate::AnswerLimit::SHORT;

operations! {
    GitExchange = "git-exchange" -> ExchangePlan, PLAN;
    GitPack = "git-pack" -> Noted, SHORT;
    GitSend = "git-send" -> Sent, SHORT;
    GitNotePush = "git-note-push" -> Noted, SHORT;
    GitFetch = "git-fetch" -> Fetched, SHORT;
    GitJoin = "git-join" -> Pulled, SHORT;
}
