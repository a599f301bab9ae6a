//! What a helper could not do.

use std::{io, path::PathBuf};

use landlock::{PathFdError, RulesetError};
use skep_api::{ErrorCode, ErrorKind, Failure};

/// What a helper could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Landlock refused a rule.
    #[error("Landlock refused its rules")]
    Landlock(#[from] RulesetError),
    /// A folder that programs must reach is not there.
    #[error("{} cannot be opened for its Landlock rule; check that it exists and who owns it", path.display())]
    Path {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: PathFdError,
    },
    /// A root cannot be opened.
    #[error("the root {} cannot be opened: {source}", path.display())]
    Root {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A call that is done on nobody's ground.
    #[error("a call without a ground")]
    NoGround,
    /// A VM's operation.
    #[error("this is no VM")]
    NoVm,
    /// The system refused.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Path { .. } => ErrorCode::UnknownPath,
            Self::Root { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
                io::ErrorKind::NotADirectory => ErrorCode::NotADirectory,
                _ => ErrorCode::UnknownPath,
            },
            Self::NoVm => ErrorCode::UnknownRoute,
            Self::Landlock(_) | Self::NoGround | Self::Io { .. } => ErrorCode::Internal,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = match &error {
            Error::Path { path, .. } => {
                format!("the root `{}` is not there; make it, or give the account another", path.display())
            }
            Error::Root { path, source } if source.kind() == io::ErrorKind::NotFound => {
                format!("the root `{}` is not there; make it, or give the account another", path.display())
            }
            Error::Root { path, source } => {
                format!("the root `{}` cannot be used: {source}; give the account another", path.display())
            }
            other => other.to_string(),
        };
        Self::new(error.code(), message)
    }
}
