//! What can go wrong with a jail.

use std::io;

use skep_api::{ErrorCode, ErrorKind, Failure};

/// What can go wrong with a jail.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The stage could not make the jail.
    #[error("the jail could not be made: {0}")]
    Stage(String),
    /// No control group can be made here.
    #[error("no control group can be made for VMs: {0}")]
    NoCgroup(String),
    /// The range of user ids belongs to somebody.
    #[error("the user ids {range} are taken by {owner}; choose others: `vm_uid_base`")]
    UidsTaken {
        /// The range, `first-last`.
        range: String,
        /// Who has them, and in which file.
        owner: String,
    },
    /// Every user id of the range is in use.
    #[error("all {0} user ids for VMs are in use; end a VM first")]
    UidsExhausted(u32),
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. } | Self::Stage(_) => ErrorCode::Internal,
            Self::NoCgroup(_) | Self::UidsTaken { .. } => ErrorCode::SwarmUnavailable,
            Self::UidsExhausted(_) => ErrorCode::NoCapacity,
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
