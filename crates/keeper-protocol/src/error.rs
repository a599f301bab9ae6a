//! The errors of the connection between server and keeper.

use std::io;

use skep_api::{ErrorCode, Failure};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The keeper refused the request.
    #[error(transparent)]
    Refused(#[from] Failure),
    #[error("the other end of the keeper's socket is closed")]
    Closed,
    /// The other end sent an unexpected message.
    #[error("unexpected on the keeper's socket: {0}")]
    Protocol(String),
    #[error("the keeper's socket: {0}")]
    Io(#[source] io::Error),
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(failure) => failure.code,
            Self::Closed => ErrorCode::ShuttingDown,
            Self::Protocol(_) | Self::Io(_) => ErrorCode::Internal,
        }
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
