//! Why a git operation was refused.

use skep_api::ErrorCode;

/// Why a git operation was refused. The message is for the caller.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The program is missing.
    #[error("`git` is not installed here; install it")]
    NoGit,
    /// Nothing that git knows.
    #[error("no repository is at `{path}` or above it, below the roots; `POST /api/git/init` makes one")]
    NoRepository {
        /// As the caller named it.
        path: String,
    },
    /// Nobody named one, and there is none, or more than one.
    #[error("`path` is missing, and {found}; name one by `path`")]
    NameOne {
        /// What there is.
        found: String,
    },
    /// No work tree.
    #[error("the repository at `{path}` is bare: it has no work tree; clone it and name the clone")]
    Bare {
        /// As the caller named it.
        path: String,
    },
    /// Its own settings lead elsewhere, or would start programs.
    #[error("the repository's own {what} {why}; remove it")]
    Hostile {
        /// Which of its settings or files.
        what: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No commit, branch or tree.
    #[error(
        "there is no revision `{revision}` here; `GET /api/git/log` and `GET /api/git/branch` list what there is"
    )]
    UnknownRevision {
        /// As the caller named it.
        revision: String,
    },
    /// A remote that nobody configured.
    #[error("there is no remote `{remote}` here, and the branch has no upstream; name a configured `remote`")]
    UnknownRemote {
        /// As the caller named it.
        remote: String,
    },
    /// A remote that git may not use.
    #[error("the remote `{remote}` {why}")]
    RemoteForbidden {
        /// Its URL, without secrets.
        remote: String,
        /// Why, and what would be right.
        why: String,
    },
    /// The remote does not answer.
    #[error("the remote did not answer as it should: {words}")]
    RemoteFailed {
        /// Git's words.
        words: String,
    },
    /// The remote did not take it.
    #[error("the remote rejected the push: {words}")]
    PushRejected {
        /// Its words.
        words: String,
    },
    /// Nothing to do.
    #[error(
        "there is nothing to commit in `{path}`: stage changes by `POST /api/git/add`, or say `allow_empty: true`"
    )]
    NothingToCommit {
        /// As the caller named it.
        path: String,
    },
    /// Nothing to put away.
    #[error("there is nothing to put away in `{path}`, or no stash to bring back")]
    NothingStashed {
        /// As the caller named it.
        path: String,
    },
    /// Two changes meet.
    #[error("the changes conflict, and the work tree is as it was before: {words}")]
    Conflict {
        /// Git's words.
        words: String,
    },
    /// A lock is there.
    #[error(
        "another git works in this repository, or one ended and left its lock; remove the lock once none runs: {words}"
    )]
    Locked {
        /// Git's words.
        words: String,
    },
    /// Another request works on the repository for long.
    #[error("another request works on this repository; try again when it is done")]
    Busy,
    /// Too slow.
    #[error("`git {command}` did not end within {seconds} seconds, and was ended; ask for less")]
    Timeout {
        /// Its verb.
        command: String,
        /// How long it had.
        seconds: u64,
    },
    /// Says more than an answer holds.
    #[error("`git {command}` says more than an answer holds; name a folder or a file, or ask for less")]
    TooMuch {
        /// Its verb.
        command: &'static str,
    },
    /// What was sent did not come whole.
    #[error("what was sent broke off: {words}; try again")]
    BrokenOff {
        /// Why.
        words: String,
    },
    /// A history of which nobody can say where it begins.
    #[error(
        "the repository's file `shallow` names more than {most} commits, or what is none; fetch all of its history inside the VM"
    )]
    Boundary {
        /// Commits that it may name.
        most: usize,
    },
    /// A name that is taken.
    #[error("{words}")]
    Taken {
        /// Git's words.
        words: String,
    },
    /// A path that git does not find.
    #[error("{words}")]
    NoFile {
        /// Git's words.
        words: String,
    },
    /// Everything else.
    #[error("git refused: {words}")]
    Other {
        /// Its words.
        words: String,
    },
    /// Git said what no git says.
    #[error("internal error")]
    Unreadable {
        /// Which git.
        command: &'static str,
    },
}

impl Refused {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoGit | Self::Other { .. } | Self::BrokenOff { .. } | Self::Boundary { .. } => {
                ErrorCode::GitRefused
            }
            Self::NoRepository { .. } => ErrorCode::UnknownRepository,
            Self::NameOne { .. } => ErrorCode::InvalidValue,
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
            Self::TooMuch { .. } => ErrorCode::BodyTooLarge,
            Self::Taken { .. } => ErrorCode::AlreadyExists,
            Self::NoFile { .. } => ErrorCode::UnknownPath,
            Self::Unreadable { .. } => ErrorCode::Internal,
        }
    }

    /// What git's words mean.
    pub(super) fn by_words(words: String) -> Self {
        let says = |text: &str| words.contains(text);
        if says(".lock': File exists") || says("Unable to create") && says(".lock") {
            Self::Locked { words }
        } else if says("already exists") || says("is already checked out") || says("already used by worktree")
        {
            Self::Taken { words }
        } else if says("did not match any file") || says("pathspec") {
            Self::NoFile { words }
        } else {
            Self::Other { words }
        }
    }
}
