//! The errors of engines and templates.

use std::{io, path::PathBuf};

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
    #[error("there is no template at {0}; bake it: `skep bake`")]
    NoTemplate(PathBuf),
    /// A file of a template does not match its manifest.
    #[error("the template at {dir} is damaged: {reason}; bake it again: `skep bake`")]
    DamagedTemplate {
        dir: PathBuf,
        /// The file, and how it differs.
        reason: String,
    },
    /// A template that this release cannot use, though it is what was baked.
    #[error("the template at {dir} is outdated: {reason}; bake it again: `skep bake`")]
    OutdatedTemplate { dir: PathBuf, reason: String },
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
            Self::NoTemplate(_) => ErrorCode::UnknownTemplate,
            // Both are baked again, and no VM is booted before.
            Self::DamagedTemplate { .. } | Self::OutdatedTemplate { .. } => ErrorCode::TemplateDamaged,
            Self::TimedOut { .. } => ErrorCode::GuestTimeout,
            Self::MonitorClosed(_) | Self::Refused { .. } | Self::Io { .. } => ErrorCode::Internal,
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
