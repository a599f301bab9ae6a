//! What the agent could not do.

use std::io;

use skep_api::{ErrorCode, Failure};

/// What the agent could not do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A step that the kernel refused.
    #[error("cannot {what}: {source}")]
    Step { what: String, source: io::Error },
    /// An identity with a part that is none.
    #[error("the identity's {part} is malformed; {wanted}")]
    Malformed { part: &'static str, wanted: &'static str },
    /// A command before there is an identity.
    #[error("this VM has no identity yet; give it one before it runs anything")]
    Nobody,
    /// A command before the VM is somebody's.
    #[error("this VM waits for an owner; hand it out before it runs anything")]
    Waiting,
    /// A program that every image has does not run.
    #[error("the shell does not work in this image: {0}")]
    NoShell(String),
}

impl Error {
    pub(crate) fn step(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Step { what: what.into(), source: source.into() }
    }

    /// The stable code.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Step { .. } => ErrorCode::Internal,
            Self::Malformed { .. } => ErrorCode::InvalidValue,
            Self::Nobody | Self::Waiting | Self::NoShell(_) => ErrorCode::ExecFailed,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Says which step failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::step(what, source))
    }
}
