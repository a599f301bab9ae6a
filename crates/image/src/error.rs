//! Errors of a bake.

use std::{
    io,
    path::{Path, PathBuf},
};

use skep_api::{ErrorCode, Failure};
use skep_channel::UnsupportedProtocol;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This binary was built without the guest agent.
    #[error("this skep was built without its guest agent; run `make`, which builds the agent first")]
    AgentNotBuilt,
    #[error("`{program}` is missing; install it: apt-get install {package}")]
    Missing {
        program: String,
        /// The Debian package that contains the program.
        package: &'static str,
    },
    #[error("`{command}` failed ({status}): {message}")]
    Failed { command: String, status: String, message: String },
    /// Apt has no package lists of a Debian archive.
    #[error("apt has no Debian package lists; run `apt-get update` and check /etc/apt/sources.list.d")]
    NoPackageLists,
    /// The kernel package lacks a file that a guest needs.
    #[error("the kernel {version} has no {what}")]
    Kernel { version: String, what: String },
    /// The guest did not boot or settle.
    #[error("the guest of the bake did not {what}: {cause}; its console: {console}")]
    Guest {
        /// `boot` or `settle`.
        what: &'static str,
        cause: String,
        /// The last output on the guest's console.
        console: String,
    },
    /// The embedded guest agent is older or newer than this binary.
    #[error(
        "the guest of the bake cannot be used: {0}; run `make`, which builds skep and its guest agent together"
    )]
    AgentProtocol(UnsupportedProtocol),
    #[error("the template at {} cannot be used: {source}; bake it again: `skep bake`", .dir.display())]
    TemplateProtocol { dir: PathBuf, source: UnsupportedProtocol },
    /// The bake was stopped by this signal.
    #[error("the bake was stopped by signal {0} and has been cleaned up")]
    Interrupted(i32),
    /// Another bake is running in this image directory.
    #[error("a bake is running in {}; wait until it has finished", .0.display())]
    Baking(PathBuf),
    #[error("no space left for a bake in {}: {cause}; it needs about 2 GB: free some space, or choose another directory with --image-dir", .dir.display())]
    DiskFull { dir: PathBuf, cause: String },
    #[error(transparent)]
    Template(#[from] skep_template::Error),
    #[error(transparent)]
    Engine(#[from] skep_engine::Error),
    /// The VMM of the bake failed and printed a reason.
    #[error("{source}; the VMM printed: {message}")]
    Vmm { source: skep_engine::Error, message: String },
    #[error("the jail of the bake: {0}")]
    Jail(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Error {
    pub(crate) fn io(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |source| Self::Io { what, source }
    }

    /// Converts errors about a full disk to [`Error::DiskFull`] with this image directory.
    pub(crate) fn with_image_dir(self, dir: &Path) -> Self {
        let full = match &self {
            Self::Io { source, .. } | Self::Template(skep_template::Error::Io { source, .. }) => {
                source.kind() == io::ErrorKind::StorageFull
            }
            // Programs report it as text, and run with a fixed locale.
            Self::Failed { message, .. } => message.contains("No space left on device"),
            _ => false,
        };
        if full { Self::DiskFull { dir: dir.to_owned(), cause: self.to_string() } } else { self }
    }

    /// Adds the output of the VMM to an error of the engine.
    pub(crate) fn with_vmm_output(self, message: &str) -> Self {
        match self {
            Self::Engine(source) if !message.is_empty() => Self::Vmm { source, message: message.to_owned() },
            other => other,
        }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Template(error) => error.code(),
            Self::Engine(error) | Self::Vmm { source: error, .. } => error.code(),
            _ => ErrorCode::SwarmUnavailable,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_recognised_from_programs_and_from_io() {
        let message = "tar: usr: Cannot write: No space left on device".to_owned();
        let failed = Error::Failed { command: "tar".to_owned(), status: "2".to_owned(), message };
        for error in [failed, Error::io("ram")(io::ErrorKind::StorageFull.into())] {
            let message = error.with_image_dir(Path::new("/images")).to_string();
            assert!(message.starts_with("no space left") && message.contains("/images"), "{message}");
        }
        let other = Error::NoPackageLists.with_image_dir(Path::new("/images"));
        assert!(matches!(other, Error::NoPackageLists));
    }
}
