//! Errors of requests to a guest.

use std::time::Duration;

use skep_api::{ErrorCode, Failure};

use crate::UnsupportedProtocol;

/// Why a request to a guest failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The error that the guest answered.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The stream ended; most likely the VM did as well.
    #[error("the VM ended")]
    Ended,
    #[error("the VM did not answer within {} s; it may be overloaded: try again, or end it", .0.as_secs_f32())]
    Timeout(Duration),
    /// The answer violates the protocol or its limits.
    #[error("the VM's agent sent an invalid answer: {0}; if this happens again, end the VM and boot another")]
    Malformed(String),
    #[error(transparent)]
    UnsupportedProtocol(#[from] UnsupportedProtocol),
    /// The roots of the account do not fit into a header.
    #[error("the paths of this account's roots are too long together; use fewer or shorter ones")]
    TooManyRoots,
    /// The operation cannot be serialised as JSON.
    #[error("internal error")]
    NotSerializable(#[source] serde_json::Error),
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(failure) => failure.code,
            Self::TooManyRoots => ErrorCode::InvalidValue,
            Self::Ended => ErrorCode::VmEnded,
            // Root of the guest can replace the agent, so an invalid answer is no fault of the server.
            Self::Timeout(_) | Self::Malformed(_) => ErrorCode::GuestTimeout,
            Self::UnsupportedProtocol(_) | Self::NotSerializable(_) => ErrorCode::Internal,
        }
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
