//! What can go wrong with a VM.

use skep_api::{ErrorCode, ErrorKind, Failure};

/// What can go wrong with a VM.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A refusal for the caller, as it was made here, in the keeper or in the guest.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The guest did not answer, or not as it should.
    #[error(transparent)]
    Guest(#[from] skep_channel::Error),
    /// The guest is not what it was told to be.
    #[error(transparent)]
    Identity(#[from] skep_channel::Mismatch),
    /// The VMM did not do as it was told.
    #[error(transparent)]
    Engine(#[from] skep_engine::Error),
    /// The keeper refused or is gone.
    #[error(transparent)]
    Keeper(#[from] skep_keeper_protocol::Error),
    /// The store refused or is gone.
    #[error(transparent)]
    Store(#[from] skep_store::Error),
    /// A task of ours died.
    #[error("a task of the swarm ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(failure) => failure.code,
            Self::Guest(error) => error.code(),
            Self::Engine(error) => error.code(),
            Self::Keeper(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Identity(_) | Self::Task(_) => ErrorCode::Internal,
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
            Error::Guest(error) => error.into(),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}
