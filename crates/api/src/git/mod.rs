//! Git operations and their answers. Each operation runs alike on the server's workspace and inside a VM.

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
    EmptyAnswer, ExchangePlan, Fetched, GitExchange, GitFetch, GitJoin, GitNotePush, GitPack, GitSend, Sent,
};
pub use history::{
    BlobEncoding, GitChangeTag, GitMerge, GitShow, GitTags, Shown, ShownFile, Tag, TagChanged, Tags,
};
pub use network::{Credential, GitReach, NETWORK_LIMIT};
pub use relay::{
    ExportSource, Exported, ExportedRef, GitCheckTarget, GitExport, GitImport, MAX_EXPORTED_REFS, RelayPlace,
    RelayUrl,
};

pub use remotes::{
    FetchedRef, FetchedRefs, GitChangeRemote, GitFetchRemote, GitImportFetched, GitRemotes, Remote,
    RemoteChange, RemoteChanged, Remotes,
};

use crate::{
    operation::{HelperKind, Operation},
    path::AbsolutePath,
};

/// The longest diff in an answer, in bytes before JSON encoding.
pub const MAX_DIFF_BYTES: usize = 16 << 20;
/// The largest page of a log, in commits.
pub const MAX_LOG_COMMITS: u32 = 1_000;

/// Reports the changes in a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitStatus {
    /// The work tree, or a folder in it.
    pub path: AbsolutePath,
}

/// Lists the repositories of a workspace: a root or the commands' initial folder if it is a repository, otherwise the
/// repositories directly below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRepositories {}

/// Compares two states of a repository's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDiff {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// Whether the index is compared instead of the work tree.
    pub staged: bool,
    /// The older state; if `None` the index, or with `staged` the last commit.
    pub from: Option<String>,
    /// The newer state; if `None` the work tree, or with `staged` the index.
    pub to: Option<String>,
    /// Restricts the diff to this file or folder.
    pub file: Option<String>,
    /// The number of context lines around each change.
    pub context: u32,
}

/// Lists commits, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitLog {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The commit to start from; the current commit if `None`.
    pub revision: Option<String>,
    /// Restricts the log to commits that changed this file or folder.
    pub file: Option<String>,
    /// The maximum number of commits: 1 to [`MAX_LOG_COMMITS`].
    pub limit: u32,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// Lists the branches of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitBranches {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// Whether remote-tracking branches are included.
    pub remote: bool,
}

/// Lists the work trees of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitWorktrees {
    /// The repository.
    pub path: AbsolutePath,
}

/// Stages files for the next commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitAdd {
    /// The work tree.
    pub path: AbsolutePath,
    /// The paths to stage, taken literally and not as patterns; all files if `None`.
    pub files: Option<Vec<String>>,
}

/// Commits the staged changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommit {
    /// The work tree.
    pub path: AbsolutePath,
    /// The commit message.
    pub message: String,
    /// The author; the committer if `None`.
    pub author: Option<Person>,
    /// The committer.
    pub committer: Person,
    /// Whether changes of tracked files are staged first.
    pub all: bool,
    /// Whether the new commit replaces the last one.
    pub amend: bool,
    /// Whether a commit without changes is allowed.
    pub allow_empty: bool,
}

/// Pushes a branch to a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitPush {
    /// The repository; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of a remote; if `None` the branch's remote, or `origin`.
    pub remote: Option<String>,
    /// The branch; the current branch if `None`.
    pub branch: Option<String>,
    /// Whether the remote branch becomes the upstream of the branch.
    pub set_upstream: bool,
    /// Whether the remote branch may lose commits, provided that it has not moved since it was last fetched.
    pub force_with_lease: bool,
    /// The addresses that git may connect to.
    pub reach: GitReach,
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
pub struct GitPull {
    /// The work tree; the only one of the workspace if `None`.
    pub path: Option<AbsolutePath>,
    /// The name of a remote; if `None` the branch's remote, or `origin`.
    pub remote: Option<String>,
    /// The remote branch; the upstream of the current branch if `None`.
    pub branch: Option<String>,
    /// How local and remote commits are combined.
    pub strategy: PullStrategy,
    /// The committer of a merge or of rebased commits.
    pub committer: Person,
    /// The addresses that git may connect to.
    pub reach: GitReach,
}

/// Creates a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitInit {
    /// The folder, which is created if it is missing.
    pub path: AbsolutePath,
    /// Whether the repository is bare: without a work tree, as a target of pushes.
    #[serde(default)]
    pub bare: bool,
}

/// Clones a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitClone {
    /// The URL of the repository to clone.
    pub url: String,
    /// The folder to create.
    pub path: AbsolutePath,
    /// The branch to check out; the current branch of the remote if `None`.
    pub branch: Option<String>,
    /// The maximum number of commits of history; all if `None`.
    pub depth: Option<u32>,
    /// The addresses that git may connect to.
    pub reach: GitReach,
}

/// Checks out a branch or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCheckout {
    /// The work tree.
    pub path: AbsolutePath,
    /// The branch or commit to check out.
    pub revision: String,
    /// Whether the branch is created from the current commit.
    pub create: bool,
    /// The addresses that filters, such as Git LFS, may connect to.
    #[serde(default)]
    pub reach: GitReach,
}

/// Creates or deletes a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeBranch {
    /// The repository.
    pub path: AbsolutePath,
    /// The branch.
    pub name: String,
    /// The commit at which a new branch starts; the current commit if `None`.
    pub from: Option<String>,
    /// Whether the branch is deleted.
    pub delete: bool,
    /// Whether a branch is deleted even if its commits are not merged.
    pub force: bool,
}

/// Adds or removes a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChangeWorktree {
    /// The repository.
    pub path: AbsolutePath,
    /// The folder of the work tree.
    pub worktree: AbsolutePath,
    /// The branch or commit to check out; a new branch with the name of the folder if `None`.
    pub revision: Option<String>,
    /// Whether the work tree is removed.
    pub remove: bool,
    /// The addresses that filters, such as Git LFS, may connect to.
    #[serde(default)]
    pub reach: GitReach,
}

/// What a reset changes besides the current branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ResetMode {
    /// Nothing else.
    Soft,
    /// The index.
    #[default]
    Mixed,
    /// The index and the work tree.
    Hard,
}

/// Moves the current branch to another commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitReset {
    /// The work tree.
    pub path: AbsolutePath,
    /// The commit to move to; the current commit if `None`.
    pub to: Option<String>,
    /// What is reset besides the branch.
    pub mode: ResetMode,
    /// The addresses that filters, such as Git LFS, may connect to.
    #[serde(default)]
    pub reach: GitReach,
}

/// An operation on stashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StashAction {
    /// Stashes all changes, including untracked files.
    Push,
    /// Applies the newest stash and drops it.
    Pop,
    /// Applies the newest stash and keeps it.
    Apply,
    /// Drops the newest stash.
    Drop,
    /// Lists the stashes without a change.
    List,
}

/// Stashes changes, or applies them again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitStash {
    /// The work tree.
    pub path: AbsolutePath,
    /// The operation.
    pub action: StashAction,
    /// The message of a new stash.
    pub message: Option<String>,
    /// The committer of a new stash.
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

/// The time limit of git commands that use no network.
pub const LOCAL_LIMIT: Duration = Duration::from_secs(120);
/// [`LOCAL_LIMIT`], and time for the transfer of the answer and for waiting on another operation in the same
/// repository.
const LOCAL_ANSWER_LIMIT: Duration = Duration::from_secs(180);
/// [`NETWORK_LIMIT`], and the same allowance as in [`LOCAL_ANSWER_LIMIT`].
const NETWORK_ANSWER_LIMIT: Duration = Duration::from_secs(NETWORK_LIMIT.as_secs() + 180);

operations! {
    GitRepositories = "git-repositories" -> Repositories in LOCAL_ANSWER_LIMIT, gathered;
    GitStatus = "git-status" -> RepositoryStatus in LOCAL_ANSWER_LIMIT, gathered;
    GitDiff = "git-diff" -> Diff in LOCAL_ANSWER_LIMIT, diff_limit;
    GitLog = "git-log" -> Log in LOCAL_ANSWER_LIMIT, gathered;
    GitBranches = "git-branches" -> Branches in LOCAL_ANSWER_LIMIT, gathered;
    GitWorktrees = "git-worktrees" -> Worktrees in LOCAL_ANSWER_LIMIT, gathered;
    GitAdd = "git-add" -> Staged in LOCAL_ANSWER_LIMIT, gathered;
    GitCommit = "git-commit" -> Committed in LOCAL_ANSWER_LIMIT, |commit| crate::AnswerLimit::with_text(commit.message.len() as u64);
    GitPush = "git-push" -> Pushed in NETWORK_ANSWER_LIMIT, short;
    GitPull = "git-pull" -> Pulled in NETWORK_ANSWER_LIMIT, short;
    GitInit = "git-init" -> Initialized in LOCAL_ANSWER_LIMIT, short;
    GitClone = "git-clone" -> Cloned in NETWORK_ANSWER_LIMIT, short;
    GitCheckout = "git-checkout" -> CheckedOut in LOCAL_ANSWER_LIMIT, short;
    GitChangeBranch = "git-change-branch" -> BranchChanged in LOCAL_ANSWER_LIMIT, short;
    GitChangeWorktree = "git-change-worktree" -> WorktreeChanged in LOCAL_ANSWER_LIMIT, short;
    GitReset = "git-reset" -> ResetDone in LOCAL_ANSWER_LIMIT, short;
    GitShow = "git-show" -> Shown in LOCAL_ANSWER_LIMIT, commit_limit;
    GitTags = "git-tags" -> Tags in LOCAL_ANSWER_LIMIT, gathered;
    GitChangeTag = "git-change-tag" -> TagChanged in LOCAL_ANSWER_LIMIT, short;
    GitMerge = "git-merge" -> Pulled in LOCAL_ANSWER_LIMIT, short;
    GitRemotes = "git-remotes" -> Remotes in LOCAL_ANSWER_LIMIT, gathered;
    GitChangeRemote = "git-change-remote" -> RemoteChanged in LOCAL_ANSWER_LIMIT, short;
    GitFetchRemote = "git-fetch-remote" -> FetchedRefs in NETWORK_ANSWER_LIMIT, gathered;
    GitStash = "git-stash" -> Stashes in LOCAL_ANSWER_LIMIT, gathered;
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
