//! Git: the operations, and what they answer. Each runs on the server's workspace and inside a VM alike.

mod answers;
mod credentials;
mod exchange;
mod history;
mod network;
mod relay;
mod remotes;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use answers::{
    Branch, BranchChanged, Branches, ChangeKind, ChangedPath, CheckedOut, Cloned, Commit, Committed, Diff,
    DiffFile, FilePath, Initialized, Log, Person, Pulled, Pushed, Repositories, RepositoryPath,
    RepositoryStatus, ResetDone, Signature, Staged, Stash, Stashes, Worktree, WorktreeChanged, Worktrees,
};
pub use credentials::{CredentialPage, CredentialRemoved, KeptCredential};
pub use exchange::{
    ExchangePlan, Fetched, GitExchange, GitFetch, GitJoin, GitNotePush, GitPack, GitSend, Noted, Sent,
};
pub use history::{
    BlobEncoding, GitChangeTag, GitMerge, GitShow, GitTags, Shown, ShownFile, Tag, TagChanged, Tags,
};
pub use network::{Credential, GitReach, NETWORK_LIMIT};
pub use relay::{
    ExportSource, Exported, ExportedRef, GitCheckTarget, GitExport, GitImport, MOST_EXPORTED_REFS,
    RelayPlace, RelayUrl,
};

pub use remotes::{
    FetchedRef, FetchedRefs, GitChangeRemote, GitFetchRemote, GitRemotes, GitTake, Remote, RemoteChange,
    RemoteChanged, Remotes,
};

use crate::{
    operation::{HelperKind, Operation},
    path::AbsolutePath,
};

/// The longest diff that is answered, in bytes.
pub const LONGEST_DIFF: usize = 16 << 20;
/// The longest page of a log.
pub const LONGEST_LOG: u32 = 1_000;

/// Tells what is changed in a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitStatus {
    /// The work tree, or a folder in it.
    pub path: AbsolutePath,
}

/// Lists the repositories of a place: a root, or the folder in which commands start, that is one; else those directly below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRepositories {}

/// Compares two states of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDiff {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// Whether what is staged is compared, and not the work tree.
    pub staged: bool,
    /// The older state; the index, or of `staged` the last commit, where `None`.
    pub from: Option<String>,
    /// The newer state; the work tree or the index where `None`.
    pub to: Option<String>,
    /// Only this file or folder.
    pub file: Option<String>,
    /// Lines around each change.
    pub context: u32,
}

/// Lists commits, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitLog {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// The commit to begin with; the current one where `None`.
    pub revision: Option<String>,
    /// Only commits that changed this file or folder.
    pub file: Option<String>,
    /// Commits at the most; 1 to [`LONGEST_LOG`].
    pub limit: u32,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Lists branches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitBranches {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// Whether those of remotes, as they were last seen, are listed too.
    pub remote: bool,
}

/// Lists work trees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitWorktrees {
    /// The repository.
    pub path: AbsolutePath,
}

/// Stages files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitAdd {
    /// The work tree.
    pub path: AbsolutePath,
    /// Literal names; all files where `None`.
    pub files: Option<Vec<String>>,
}

/// Commits what is staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommit {
    /// The work tree.
    pub path: AbsolutePath,
    /// What the commit says.
    pub message: String,
    /// Who wrote it.
    pub author: Option<Person>,
    /// Who commits it, and wrote it where `author` is `None`.
    pub committer: Person,
    /// Whether changes of files that git knows are staged first.
    pub all: bool,
    /// Whether the last commit is replaced.
    pub amend: bool,
    /// Whether a commit may change nothing.
    pub allow_empty: bool,
}

/// Sends a branch to a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitPush {
    /// The repository; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// A remote's name; that of the branch, or `origin`, where `None`.
    pub remote: Option<String>,
    /// The branch; the current one where `None`.
    pub branch: Option<String>,
    /// Whether the remote's branch becomes the branch's upstream.
    pub set_upstream: bool,
    /// Whether the remote's branch may lose commits, where it is as it was last seen.
    pub force_with_lease: bool,
    /// What may be reached.
    pub reach: GitReach,
}

/// How a pull joins what is here and what is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PullStrategy {
    /// Only where nothing was committed here.
    #[default]
    FfOnly,
    /// By a commit of both.
    Merge,
    /// By doing the commits of here again on those of there.
    Rebase,
}

/// Fetches a branch from a remote and joins it with the current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitPull {
    /// The work tree; the one of the place where `None`.
    pub path: Option<AbsolutePath>,
    /// A remote's name; that of the branch, or `origin`, where `None`.
    pub remote: Option<String>,
    /// The remote's branch; the upstream of the current one where `None`.
    pub branch: Option<String>,
    /// How.
    pub strategy: PullStrategy,
    /// Who commits a merge.
    pub committer: Person,
    /// What may be reached.
    pub reach: GitReach,
}

/// Makes a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitInit {
    /// The folder, which is made where it is missing.
    pub path: AbsolutePath,
    /// Whether it has no work tree: others push to it.
    #[serde(default)]
    pub bare: bool,
}

/// Makes a repository out of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitClone {
    /// What is cloned.
    pub url: String,
    /// The folder, which is made.
    pub path: AbsolutePath,
    /// The branch that is checked out; the remote's own where `None`.
    pub branch: Option<String>,
    /// Only so many commits of its history.
    pub depth: Option<u32>,
    /// What may be reached.
    pub reach: GitReach,
}

/// Puts another commit into the work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCheckout {
    /// The work tree.
    pub path: AbsolutePath,
    /// A branch, or a commit.
    pub revision: String,
    /// Whether the branch is made, from the current commit.
    pub create: bool,
    /// What filters may reach.
    #[serde(default)]
    pub reach: GitReach,
}

/// Makes or deletes a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeBranch {
    /// The repository.
    pub path: AbsolutePath,
    /// The branch.
    pub name: String,
    /// What it begins at; the current commit where `None`.
    pub from: Option<String>,
    /// Whether it is deleted.
    pub delete: bool,
    /// Whether it is deleted though its commits are nowhere else.
    pub force: bool,
}

/// Adds or removes a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeWorktree {
    /// The repository.
    pub path: AbsolutePath,
    /// The work tree's folder.
    pub worktree: AbsolutePath,
    /// What is put into it; a new branch of the folder's name where `None`.
    pub revision: Option<String>,
    /// Whether it is removed.
    pub remove: bool,
    /// What filters may reach.
    #[serde(default)]
    pub reach: GitReach,
}

/// What a reset takes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResetMode {
    /// The branch alone.
    Soft,
    /// What is staged too.
    #[default]
    Mixed,
    /// The work tree too.
    Hard,
}

/// Puts the current branch at another commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitReset {
    /// The work tree.
    pub path: AbsolutePath,
    /// Where to; the current commit where `None`.
    pub to: Option<String>,
    /// What is taken back.
    pub mode: ResetMode,
    /// What filters may reach.
    #[serde(default)]
    pub reach: GitReach,
}

/// What is done with stashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StashAction {
    /// All changes, of new files too, are put away.
    Push,
    /// The newest is brought back, and dropped.
    Pop,
    /// The newest is brought back, and stays.
    Apply,
    /// The newest is dropped.
    Drop,
    /// Nothing: they are listed.
    List,
}

/// Puts changes away, or brings them back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitStash {
    /// The work tree.
    pub path: AbsolutePath,
    /// What is done.
    pub action: StashAction,
    /// What a new stash says.
    pub message: Option<String>,
    /// Who puts it away.
    pub committer: Person,
}

macro_rules! operations {
    ($($operation:ident = $name:literal -> $answer:ident in $limit:expr, $length:expr;)+) => {
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
        })+
    };
}

/// How long what needs no network may take.
pub const LOCAL_LIMIT: Duration = Duration::from_secs(120);
/// The same with the time in which its answer travels, and it waits for another one on the same repository.
const ANSWERED_WITHIN: Duration = Duration::from_secs(180);
const FETCHED_WITHIN: Duration = Duration::from_secs(NETWORK_LIMIT.as_secs() + 180);

operations! {
    GitRepositories = "git-repositories" -> Repositories in ANSWERED_WITHIN, gathered;
    GitStatus = "git-status" -> RepositoryStatus in ANSWERED_WITHIN, gathered;
    GitDiff = "git-diff" -> Diff in ANSWERED_WITHIN, of_a_diff;
    GitLog = "git-log" -> Log in ANSWERED_WITHIN, gathered;
    GitBranches = "git-branches" -> Branches in ANSWERED_WITHIN, gathered;
    GitWorktrees = "git-worktrees" -> Worktrees in ANSWERED_WITHIN, gathered;
    GitAdd = "git-add" -> Staged in ANSWERED_WITHIN, gathered;
    GitCommit = "git-commit" -> Committed in ANSWERED_WITHIN, |commit| crate::AnswerLimit::with_text(commit.message.len() as u64);
    GitPush = "git-push" -> Pushed in FETCHED_WITHIN, short;
    GitPull = "git-pull" -> Pulled in FETCHED_WITHIN, short;
    GitInit = "git-init" -> Initialized in ANSWERED_WITHIN, short;
    GitClone = "git-clone" -> Cloned in FETCHED_WITHIN, short;
    GitCheckout = "git-checkout" -> CheckedOut in ANSWERED_WITHIN, short;
    GitChangeBranch = "git-change-branch" -> BranchChanged in ANSWERED_WITHIN, short;
    GitChangeWorktree = "git-change-worktree" -> WorktreeChanged in ANSWERED_WITHIN, short;
    GitReset = "git-reset" -> ResetDone in ANSWERED_WITHIN, short;
    GitShow = "git-show" -> Shown in ANSWERED_WITHIN, of_a_commit;
    GitTags = "git-tags" -> Tags in ANSWERED_WITHIN, gathered;
    GitChangeTag = "git-change-tag" -> TagChanged in ANSWERED_WITHIN, short;
    GitMerge = "git-merge" -> Pulled in ANSWERED_WITHIN, short;
    GitRemotes = "git-remotes" -> Remotes in ANSWERED_WITHIN, gathered;
    GitChangeRemote = "git-change-remote" -> RemoteChanged in ANSWERED_WITHIN, short;
    GitFetchRemote = "git-fetch-remote" -> FetchedRefs in FETCHED_WITHIN, gathered;
    GitStash = "git-stash" -> Stashes in ANSWERED_WITHIN, gathered;
}

fn short<O>(_: &O) -> crate::AnswerLimit {
    crate::AnswerLimit::SHORT
}

fn gathered<O>(_: &O) -> crate::AnswerLimit {
    crate::AnswerLimit::GATHERED
}

/// A commit has a message beside its changes.
fn of_a_commit(_: &GitShow) -> crate::AnswerLimit {
    WITH_TEXT
}

/// The text of a diff is limited before it is written as JSON, in which it grows.
fn of_a_diff(_: &GitDiff) -> crate::AnswerLimit {
    WITH_TEXT
}

const WITH_TEXT: crate::AnswerLimit =
    crate::AnswerLimit { bytes: 2 * crate::AnswerLimit::GATHERED.bytes, ..crate::AnswerLimit::GATHERED };
