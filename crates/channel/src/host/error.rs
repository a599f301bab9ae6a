//! Why a guest did not do what it was asked.

use std::time::Duration;

use skep_api::{ErrorCode, ErrorKind, Failure};

/// Why a guest did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The guest's own words.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The stream ended, and with it, as far as anybody can tell, the VM.
    #[error("the VM ended")]
    Ended,
    /// No answer in time.
    #[error("the VM did not answer within {} s; it may be overloaded: try again, or end it", .0.as_secs_f32())]
    Silent(Duration),
    /// An answer that makes no sense.
    #[error("the VM's agent answered what makes no sense: {0}")]
    Malformed(String),
    /// The ground cannot stand in a header.
    #[error("the roots of this account are more than fit into a call; name fewer or shorter ones")]
    Ground,
    /// The operation cannot be told as JSON.
    #[error("internal error")]
    Unspeakable(#[source] serde_json::Error),
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(failure) => failure.code,
            Self::Ground => ErrorCode::InvalidValue,
            Self::Ended => ErrorCode::VmEnded,
            Self::Silent(_) => ErrorCode::GuestTimeout,
            Self::Malformed(_) | Self::Unspeakable(_) => ErrorCode::Internal,
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
            other => Self::new(other.code(), other.to_string()),
        }
    }
}
