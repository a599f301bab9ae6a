//! The errors of engines.

use std::io;

use skep_api::{ErrorCode, Failure};

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
    /// An update of its package replaced the program by another version, which does not load saved states of the former one.
    #[error(
        "the machine's {was} was updated to {is}, which cannot load what the former one saved, so no VM is started; restart \
         skep (`systemctl restart skep`): running VMs continue, and `base` is built again"
    )]
    VersionChanged { was: String, is: String },
    /// The engine was made to drive VMMs only.
    #[error("this engine was not made to launch VMMs")]
    NoLauncher,
    #[error("the connection to the monitor ended: {0}")]
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
            // All templates are outdated. The message is for callers too.
            Self::VersionChanged { .. } => ErrorCode::TemplateNotReady,
            Self::TimedOut { .. } => ErrorCode::GuestTimeout,
            Self::NoLauncher | Self::MonitorClosed(_) | Self::Refused { .. } | Self::Io { .. } => {
                ErrorCode::Internal
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
