//! The errors of engines.

use skep_api::{ErrorCode, ErrorKind, Failure};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{program} cannot be used: {reason}; install it: apt-get install {package}")]
    Missing {
        program: &'static str,
        /// What was tried, and the result.
        reason: String,
        /// The Debian package that contains it.
        package: &'static str,
    },
    #[error("the monitor is gone: {0}")]
    MonitorClosed(String),
    #[error("the monitor refused `{command}`: {reason}")]
    Refused { command: &'static str, reason: String },
    #[error("the VMM did not {what} within {seconds} s")]
    TimedOut { what: &'static str, seconds: u64 },
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } => ErrorCode::SwarmUnavailable,
            Self::TimedOut { .. } => ErrorCode::GuestTimeout,
            Self::MonitorClosed(_) | Self::Refused { .. } => ErrorCode::Internal,
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
