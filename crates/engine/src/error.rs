//! The errors of engines.

use std::io;

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
    /// The engine was made to drive VMMs only.
    #[error("this engine was not made to launch VMMs")]
    NoLauncher,
    #[error("the monitor is gone: {0}")]
    MonitorClosed(String),
    #[error("the monitor refused `{command}`: {reason}")]
    Refused { command: &'static str, reason: String },
    #[error("the VMM did not {what} within {seconds} s")]
    TimedOut { what: &'static str, seconds: u64 },
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } => ErrorCode::SwarmUnavailable,
            Self::TimedOut { .. } => ErrorCode::GuestTimeout,
            Self::NoLauncher | Self::MonitorClosed(_) | Self::Refused { .. } | Self::Io { .. } => {
                ErrorCode::Internal
            }
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
