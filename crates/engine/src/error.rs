//! What can go wrong with an engine.

use std::{io, path::PathBuf};

use skep_api::{ErrorCode, ErrorKind, Failure};

/// What can go wrong with an engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's program is missing or does not run.
    #[error("{program} cannot be used: {reason}; install it: apt-get install {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// What was tried and what came of it.
        reason: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The monitor's stream broke.
    #[error("the monitor is gone: {0}")]
    MonitorGone(String),
    /// The monitor refused a command.
    #[error("the monitor refused `{command}`: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The VMM's words.
        reason: String,
    },
    /// The VMM did not get where it should in time.
    #[error("the VMM did not {what} within {seconds} s")]
    TimedOut {
        /// What it should have done.
        what: &'static str,
        /// The time that it had, in seconds.
        seconds: u64,
    },
    /// There is no such template.
    #[error("there is no template at {0}; bake it: `skep bake`")]
    NoTemplate(PathBuf),
    /// A file of a template is not what its manifest says.
    #[error("the template at {dir} is damaged: {reason}; bake it again: `skep bake`")]
    DamagedTemplate {
        /// The template's folder.
        dir: PathBuf,
        /// Which file, and in what way.
        reason: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing { .. } => ErrorCode::SwarmUnavailable,
            Self::NoTemplate(_) => ErrorCode::UnknownTemplate,
            Self::DamagedTemplate { .. } => ErrorCode::TemplateDamaged,
            Self::TimedOut { .. } => ErrorCode::GuestTimeout,
            Self::MonitorGone(_) | Self::Refused { .. } | Self::Io { .. } => ErrorCode::Internal,
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
