//! What can go wrong between server and keeper.

use std::io;

use skep_api::{ErrorCode, ErrorKind, Failure};

/// What can go wrong between server and keeper.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The keeper refused, in its own words.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The other end is gone.
    #[error("the other end of the keeper's socket is closed")]
    Closed,
    /// The other end said what it should not.
    #[error("unexpected on the keeper's socket: {0}")]
    Protocol(String),
    /// The socket does not work.
    #[error("the keeper's socket: {0}")]
    Io(#[source] io::Error),
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(failure) => failure.code,
            Self::Closed => ErrorCode::ShuttingDown,
            Self::Protocol(_) | Self::Io(_) => ErrorCode::Internal,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(failure) => failure,
            error => Self::new(error.code(), error.to_string()),
        }
    }
}
