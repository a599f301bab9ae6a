//! Why an operation was refused.

use std::{io, path::PathBuf};

use skep_api::{ErrorCode, ErrorKind, Failure};

/// Why an operation was refused. The message is for the caller; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is known by this name.
    #[error(
        "`{name}` is no operation of this workspace; it may be older than the server: make its template anew"
    )]
    UnknownOperation {
        /// The name that was asked for.
        name: String,
    },
    /// The operation's JSON does not fit.
    #[error("the request of `{operation}` is malformed: {source}")]
    Malformed {
        /// The operation's name.
        operation: &'static str,
        /// Where it does not fit.
        source: serde_json::Error,
    },
    /// The answer cannot be told as JSON.
    #[error("internal error")]
    Unspeakable(#[source] serde_json::Error),
    /// A field holds what it may not.
    #[error("`{field}` {reason}")]
    InvalidValue {
        /// The field's name.
        field: &'static str,
        /// What is wrong with its value, and what would be right.
        reason: String,
    },
    /// The working directory is not there.
    #[error("the working directory `{path}` does not exist; make it first or name another `cwd`")]
    UnknownDirectory {
        /// As the caller named it.
        path: String,
    },
    /// The working directory is something else.
    #[error("the working directory `{path}` is not a directory; name one as `cwd`")]
    NotADirectory {
        /// As the caller named it.
        path: String,
    },
    /// The working directory lies elsewhere.
    #[error("the working directory `{path}` lies outside the workspace; name one inside as `cwd`")]
    OutsideRoot {
        /// As the caller named it.
        path: String,
    },
    /// The command could not be started.
    #[error("the command could not be started: {source}")]
    NotStarted {
        /// What the kernel said.
        #[from]
        source: io::Error,
    },
    /// The control group that a command needs.
    #[error("no control group for the command at {}: {source}", path.display())]
    ControlGroup {
        /// Where it should be.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody started it, or it was forgotten.
    #[error("there is no command `{id}`: it was never started, or ended too long ago")]
    UnknownCommand {
        /// The id that was asked for.
        id: String,
    },
    /// Two commands under one id.
    #[error("a command `{id}` was started already; give each command an id of its own")]
    IdTaken {
        /// The id.
        id: String,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownOperation { .. } => ErrorCode::UnknownRoute,
            Self::Malformed { .. } => ErrorCode::MalformedBody,
            Self::Unspeakable(_) => ErrorCode::Internal,
            Self::InvalidValue { .. } => ErrorCode::InvalidValue,
            Self::UnknownDirectory { .. } => ErrorCode::UnknownPath,
            Self::NotADirectory { .. } => ErrorCode::NotADirectory,
            Self::OutsideRoot { .. } => ErrorCode::PathOutsideRoots,
            Self::NotStarted { .. } | Self::ControlGroup { .. } | Self::IdTaken { .. } => {
                ErrorCode::ExecFailed
            }
            Self::UnknownCommand { .. } => ErrorCode::UnknownExec,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
