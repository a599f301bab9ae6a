//! Errors of the agent.

use std::{io, time::Duration};

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
    /// The token of a freeze is empty or too long.
    #[error("the token of a freeze has {bytes} bytes; it must have 1 to 128")]
    Token { bytes: usize },
    /// A freeze or thaw while the programs are frozen with another token.
    #[error("the programs of this VM are frozen for another copy; try again once that is made")]
    FrozenByAnother,
    /// Programs ran on when the time was over.
    #[error("the programs of this VM did not stop within {} s, so they run on; try again when they wait for less", .0.as_secs())]
    NotFrozen(Duration),
    /// A thaw came while the programs were being frozen.
    #[error("the programs of this VM were thawed before all of them had stopped; try again")]
    Thawed,
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
            Self::Malformed { .. } | Self::Token { .. } => ErrorCode::InvalidValue,
            Self::NotFrozen(_) => ErrorCode::GuestTimeout,
            Self::NoIdentity | Self::NoOwner | Self::NoShell(_) | Self::FrozenByAnother | Self::Thawed => {
                ErrorCode::ExecFailed
            }
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
