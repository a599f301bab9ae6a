//! Git operations and their answers. Each operation runs alike on the server's workspace and inside a VM.

mod answers;
mod branches;
mod create;
mod credentials;
mod exchange;
mod history;
mod network;
mod read;
mod relay;
mod remotes;
mod stash;
mod transfer;
mod worktrees;
mod write;

use std::time::Duration;

pub use answers::*;
pub use branches::*;
pub use create::*;
pub use credentials::*;
pub use exchange::*;
pub use history::*;
pub use network::*;
pub use read::*;
pub use relay::*;
pub use remotes::*;
pub use stash::*;
pub use transfer::*;
pub use worktrees::*;
pub use write::*;

use crate::{
    ErrorCode::{self, *},
    Scope,
    endpoint::{Access, Method, Route},
    operation::{AddsFiles, HelperKind, Operation},
    refusals::{PATH, PLACE, REPOSITORY},
};

/// The longest diff in an answer, in bytes before JSON encoding.
pub const MAX_DIFF_BYTES: usize = 16 << 20;
/// The largest page of a log, in commits.
pub const MAX_LOG_COMMITS: u32 = 1_000;

/// A route that reads repositories.
const READ: Route = Route {
    tag: "git",
    refusals: READ_REFUSALS,
    paths: &["path"],
    ..Route::new(Method::Get, "", "", Access::AnyKey(&[Scope::GitRead]))
};

/// A route that changes repositories.
const WRITE: Route = Route {
    tag: "git",
    refusals: WRITE_REFUSALS,
    paths: &["path"],
    ..Route::new(Method::Post, "", "", Access::AnyKey(&[Scope::GitWrite]))
};

/// A route that changes a work tree, for which git-lfs may fetch files.
const CHECK_OUT: Route = Route { refusals: CHECK_OUT_REFUSALS, uses_network: true, ..WRITE };

/// Refusals of operations that read a repository.
const READ_REFUSALS: &[&[ErrorCode]] = &[PLACE, PATH, REPOSITORY, &[BodyTooLarge]];

/// Refusals of operations that change a repository.
const WRITE_REFUSALS: &[&[ErrorCode]] =
    &[PLACE, PATH, REPOSITORY, &[AlreadyExists, NothingToCommit, MergeConflict, BodyTooLarge]];

/// Refusals of operations that change a work tree.
const CHECK_OUT_REFUSALS: &[&[ErrorCode]] = &[
    PLACE,
    PATH,
    REPOSITORY,
    &[AlreadyExists, NothingToCommit, MergeConflict, BodyTooLarge, RemoteForbidden, RemoteFailed],
];

/// Refusals of operations that contact a remote repository.
const NETWORK_REFUSALS: &[&[ErrorCode]] = &[
    PLACE,
    PATH,
    REPOSITORY,
    &[AlreadyExists, MergeConflict, UnknownRemote, RemoteForbidden, RemoteFailed, PushRejected],
];

macro_rules! operations {
    ($($operation:ident = $name:literal -> $answer:ident in $limit:expr, $length:expr, $adds:expr;)+) => {
        $(impl Operation for $operation {
            const NAME: &'static str = $name;
            const HELPER: Option<HelperKind> = Some(HelperKind::Git);
            type Answer = $answer;

            fn time_limit(&self) -> Duration {
                $limit
            }

            fn answer_limit(&self) -> crate::AnswerLimit {
                let length: fn(&Self) -> crate::AnswerLimit = $length;
                length(self)
            }

            fn adds_files(&self) -> AddsFiles {
                let adds: fn(&Self) -> AddsFiles = $adds;
                adds(self)
            }
        })+
    };
}

/// The time limit of git commands that use no network.
pub const LOCAL_LIMIT: Duration = Duration::from_secs(120);
/// [`LOCAL_LIMIT`], and time for the transfer of the answer and for waiting on another operation in the same
/// repository, or on other operations that read.
const LOCAL_ANSWER_LIMIT: Duration = Duration::from_secs(180);
/// [`NETWORK_LIMIT`], and the same allowance as in [`LOCAL_ANSWER_LIMIT`].
const NETWORK_ANSWER_LIMIT: Duration = Duration::from_secs(NETWORK_LIMIT.as_secs() + 180);

operations! {
    GitRepositories = "git-repositories" -> Repositories in LOCAL_ANSWER_LIMIT, gathered, never;
    GitStatus = "git-status" -> RepositoryStatus in LOCAL_ANSWER_LIMIT, gathered, never;
    GitDiff = "git-diff" -> Diff in LOCAL_ANSWER_LIMIT, diff_limit, never;
    GitLog = "git-log" -> Log in LOCAL_ANSWER_LIMIT, gathered, never;
    GitBranches = "git-branches" -> Branches in LOCAL_ANSWER_LIMIT, gathered, never;
    GitWorktrees = "git-worktrees" -> Worktrees in LOCAL_ANSWER_LIMIT, gathered, never;
    GitAdd = "git-add" -> Staged in LOCAL_ANSWER_LIMIT, gathered, always;
    GitCommit = "git-commit" -> Committed in LOCAL_ANSWER_LIMIT, |commit| crate::AnswerLimit::with_text(commit.message.len() as u64), always;
    GitPush = "git-push" -> Pushed in NETWORK_ANSWER_LIMIT, short, |_| AddsFiles::Perhaps;
    GitPull = "git-pull" -> Pulled in NETWORK_ANSWER_LIMIT, short, always;
    GitInit = "git-init" -> Initialized in LOCAL_ANSWER_LIMIT, short, always;
    GitClone = "git-clone" -> Cloned in NETWORK_ANSWER_LIMIT, short, always;
    GitCheckout = "git-checkout" -> CheckedOut in NETWORK_ANSWER_LIMIT, short, always;
    GitChangeBranch = "git-change-branch" -> BranchChanged in LOCAL_ANSWER_LIMIT, short, |branch| AddsFiles::unless(branch.delete);
    GitChangeWorktree = "git-change-worktree" -> WorktreeChanged in NETWORK_ANSWER_LIMIT, short, |worktree| AddsFiles::unless(worktree.remove);
    GitReset = "git-reset" -> ResetDone in NETWORK_ANSWER_LIMIT, short, always;
    GitShow = "git-show" -> Shown in LOCAL_ANSWER_LIMIT, commit_limit, never;
    GitTags = "git-tags" -> Tags in LOCAL_ANSWER_LIMIT, gathered, never;
    GitChangeTag = "git-change-tag" -> TagChanged in LOCAL_ANSWER_LIMIT, short, |tag| AddsFiles::unless(tag.delete);
    GitMerge = "git-merge" -> Pulled in NETWORK_ANSWER_LIMIT, short, always;
    GitRemotes = "git-remotes" -> Remotes in LOCAL_ANSWER_LIMIT, gathered, never;
    GitChangeRemote = "git-change-remote" -> RemoteChanged in LOCAL_ANSWER_LIMIT, short, |remote| AddsFiles::unless(remote.remove);
    GitFetchRemote = "git-fetch-remote" -> FetchedRefs in NETWORK_ANSWER_LIMIT, gathered, always;
    GitStash = "git-stash" -> Stashes in LOCAL_ANSWER_LIMIT, gathered, |stash| AddsFiles::unless(matches!(stash.action, StashAction::Drop | StashAction::List));
}

fn always<O>(_: &O) -> AddsFiles {
    AddsFiles::Always
}

fn never<O>(_: &O) -> AddsFiles {
    AddsFiles::Never
}

fn short<O>(_: &O) -> crate::AnswerLimit {
    crate::AnswerLimit::SHORT
}

fn gathered<O>(_: &O) -> crate::AnswerLimit {
    crate::AnswerLimit::GATHERED
}

/// The answer contains the commit message as well as the diff.
fn commit_limit(_: &GitShow) -> crate::AnswerLimit {
    WITH_TEXT
}

/// The diff is limited before it is encoded as JSON, where escapes make it longer.
fn diff_limit(_: &GitDiff) -> crate::AnswerLimit {
    WITH_TEXT
}

const WITH_TEXT: crate::AnswerLimit =
    crate::AnswerLimit { bytes: 2 * crate::AnswerLimit::GATHERED.bytes, ..crate::AnswerLimit::GATHERED };
