//! Errors of the helper.

use std::{io, path::PathBuf};

use landlock::{PathFdError, RulesetError};
use skep_api::{ErrorCode, ErrorKind, Failure};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Landlock refused its rules")]
    Landlock(#[from] RulesetError),
    /// A folder that programs need does not exist.
    #[error("{} cannot be opened for its Landlock rule; check that it exists and who owns it", path.display())]
    Path {
        path: PathBuf,
        #[source]
        source: PathFdError,
    },
    #[error("the root {} cannot be opened: {source}", path.display())]
    Root {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A request without account roots.
    #[error("the request names no account roots")]
    NoAccountRoots,
    /// An operation that only VMs support.
    #[error("this is not a VM")]
    NotAVm,
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Path { .. } => ErrorCode::UnknownPath,
            Self::Root { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
                io::ErrorKind::NotADirectory => ErrorCode::NotADirectory,
                _ => ErrorCode::UnknownPath,
            },
            Self::NotAVm => ErrorCode::UnknownRoute,
            Self::Landlock(_) | Self::NoAccountRoots | Self::Io { .. } => ErrorCode::Internal,
        }
    }

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
