use std::{fmt::Display, io, path::PathBuf};

use skep_api::{ErrorCode, ErrorKind};

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no template at {0}; bake it: `skep bake`")]
    Missing(PathBuf),
    /// A file of a template does not match its manifest.
    #[error("the template at {dir} is damaged: {reason}; bake it again: `skep bake`")]
    Damaged {
        dir: PathBuf,
        /// The file, and how it differs.
        reason: String,
    },
    /// The template is what was baked, but for another release or machine.
    #[error("the template at {dir} is outdated: {reason}; bake it again: `skep bake`")]
    Outdated { dir: PathBuf, reason: String },
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Error {
    /// The error of a failed access to what `what` names.
    pub fn io(what: impl Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |source| Self::Io { what, source }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing(_) => ErrorCode::UnknownTemplate,
            // Both are baked again, and no VM is booted before.
            Self::Damaged { .. } | Self::Outdated { .. } => ErrorCode::TemplateDamaged,
            Self::Io { .. } => ErrorCode::Internal,
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}
