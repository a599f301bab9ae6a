//! The errors of jails and cgroups.

use std::io;

use skep_api::{ErrorCode, Failure};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("the jail could not be made: {0}")]
    Stage(String),
    #[error("no control group can be made for VMs: {0}")]
    NoCgroup(String),
    /// The range of user ids overlaps with other users.
    #[error("the user ids {range} are taken by {owner}; choose others: `vm_uid_base`")]
    UidsTaken {
        /// In the form `first-last`.
        range: String,
        /// The other user, and the file that defines it.
        owner: String,
    },
    #[error("all {0} user ids for VMs are in use; end a VM first")]
    UidsExhausted(u32),
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. } | Self::Stage(_) => ErrorCode::Internal,
            Self::NoCgroup(_) | Self::UidsTaken { .. } => ErrorCode::SwarmUnavailable,
            Self::UidsExhausted(_) => ErrorCode::NoCapacity,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
