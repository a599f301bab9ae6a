//! Errors of git operations.

use skep_api::ErrorCode;

/// An error of a git operation. The message is for the caller.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("`git` is not installed here; install it")]
    GitNotInstalled,
    #[error("no repository is at `{path}` or above it, below the roots; create or clone one first")]
    NoRepository { path: String },
    /// The request has no path, and the workspace does not have exactly one repository.
    #[error("`path` is missing, and {found}")]
    PathRequired {
        /// What the workspace has instead, and a way out.
        found: String,
    },
    #[error("the repository at `{path}` is bare: it has no work tree; clone it and name the clone")]
    Bare { path: String },
    /// The repository's own config or files lead outside the roots or would start programs.
    #[error("the repository's own {what} {why}; remove it")]
    Hostile {
        /// The config key or file.
        what: String,
        why: &'static str,
    },
    #[error("there is no revision `{revision}` here; list the branches or read the log to see what there is")]
    UnknownRevision { revision: String },
    #[error("there is no remote `{remote}` here, and the branch has no upstream; name a configured `remote`")]
    UnknownRemote { remote: String },
    #[error("the remote `{remote}` {why}")]
    RemoteForbidden {
        /// The URL without user and password.
        remote: String,
        /// The reason and a way out.
        why: String,
    },
    #[error("the remote did not answer as it should: {message}")]
    RemoteFailed { message: String },
    #[error("the remote rejected the push: {message}")]
    PushRejected { message: String },
    #[error("there is nothing to commit in `{path}`: stage changes first, or set `allow_empty`")]
    NothingToCommit { path: String },
    #[error("there are no changes to stash in `{path}`, or no stash to apply or drop")]
    NothingStashed { path: String },
    #[error("the changes conflict, and the work tree is as it was before: {message}")]
    Conflict { message: String },
    /// A lock file of git exists.
    #[error(
        "another git works in this repository, or one ended and left its lock; remove the lock once none runs: {message}"
    )]
    Locked { message: String },
    /// Another request of this process holds the write lock of the repository for too long.
    #[error("another request works on this repository; try again when it is done")]
    Busy,
    #[error("`git {command}` did not end within {seconds} seconds, and was ended; ask for less")]
    Timeout {
        /// The subcommand.
        command: String,
        seconds: u64,
    },
    /// The output exceeds the size limit of an answer.
    #[error("the output of `git {command}` is too large; name a folder or a file, or ask for less")]
    OutputTooLarge {
        /// The subcommand.
        command: &'static str,
    },
    /// The pack or content that was sent is incomplete.
    #[error("the transfer is incomplete: {message}; try again")]
    IncompleteTransfer { message: String },
    /// The file `shallow` is too long or malformed.
    #[error(
        "the repository's file `shallow` names more than {most} commits, or is malformed; fetch the complete history inside the VM"
    )]
    InvalidShallowFile { most: usize },
    #[error("{message}")]
    AlreadyExists { message: String },
    #[error("{message}")]
    UnknownPath { message: String },
    #[error("git refused: {message}")]
    Other { message: String },
    /// The output of git does not have the documented format.
    #[error("internal error")]
    UnexpectedOutput {
        /// The subcommand.
        command: &'static str,
    },
}

impl GitError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::GitNotInstalled
            | Self::Other { .. }
            | Self::IncompleteTransfer { .. }
            | Self::InvalidShallowFile { .. } => ErrorCode::GitRefused,
            Self::NoRepository { .. } => ErrorCode::UnknownRepository,
            Self::PathRequired { .. } => ErrorCode::InvalidValue,
            Self::Bare { .. } => ErrorCode::BareRepository,
            Self::Hostile { .. } => ErrorCode::HostileRepository,
            Self::UnknownRevision { .. } => ErrorCode::UnknownRevision,
            Self::UnknownRemote { .. } => ErrorCode::UnknownRemote,
            Self::RemoteForbidden { .. } => ErrorCode::RemoteForbidden,
            Self::RemoteFailed { .. } => ErrorCode::RemoteFailed,
            Self::PushRejected { .. } => ErrorCode::PushRejected,
            Self::NothingToCommit { .. } | Self::NothingStashed { .. } => ErrorCode::NothingToCommit,
            Self::Conflict { .. } => ErrorCode::MergeConflict,
            Self::Locked { .. } | Self::Busy => ErrorCode::RepositoryLocked,
            Self::Timeout { .. } => ErrorCode::GitTimeout,
            Self::OutputTooLarge { .. } => ErrorCode::BodyTooLarge,
            Self::AlreadyExists { .. } => ErrorCode::AlreadyExists,
            Self::UnknownPath { .. } => ErrorCode::UnknownPath,
            Self::UnexpectedOutput { .. } => ErrorCode::Internal,
        }
    }

    /// Classifies a failure by git's message.
    pub(super) fn from_message(message: String) -> Self {
        let contains = |text: &str| message.contains(text);
        if contains(".lock': File exists") || contains("Unable to create") && contains(".lock") {
            Self::Locked { message }
        } else if contains("already exists")
            || contains("is already checked out")
            || contains("already used by worktree")
        {
            Self::AlreadyExists { message }
        } else if contains("did not match any file") || contains("pathspec") {
            Self::UnknownPath { message }
        } else {
            Self::Other { message }
        }
    }
}
