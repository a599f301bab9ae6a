//! Errors of the agent.

use std::io;

use skep_api::{ErrorCode, Failure};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A step that the kernel refused.
    #[error("cannot {what}: {source}")]
    Step { what: String, source: io::Error },
    /// An identity with a malformed part.
    #[error("the identity's {part} is malformed; {wanted}")]
    Malformed { part: &'static str, wanted: &'static str },
    /// A command before the VM has an identity.
    #[error("this VM has no identity yet; it must receive one before it runs commands")]
    NoIdentity,
    /// A command before the VM has an owner.
    #[error("this VM has no owner yet; it must be assigned to one before it runs commands")]
    NoOwner,
    /// The shell of the image does not run.
    #[error("the shell does not work in this image: {0}")]
    NoShell(String),
}

impl Error {
    pub(crate) fn step(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Step { what: what.into(), source: source.into() }
    }

    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Step { .. } => ErrorCode::Internal,
            Self::Malformed { .. } => ErrorCode::InvalidValue,
            Self::NoIdentity | Self::NoOwner | Self::NoShell(_) => ErrorCode::ExecFailed,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Adds the description of the failed step to an error.
pub(crate) trait StepContext<T> {
    fn context(self, what: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::step(what, source))
    }
}
