//! What can go wrong with a bake.

use std::{
    io,
    path::{Path, PathBuf},
};

use skep_api::{ErrorCode, ErrorKind, Failure};

/// What can go wrong with a bake.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This binary was built without the guest agent.
    #[error("this skep was built without its guest agent; run `make`, which builds the agent first")]
    NoAgent,
    /// A program that a bake needs is missing.
    #[error("`{program}` is missing; install it: apt-get install {package}")]
    Missing {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program that a bake needs failed.
    #[error("`{command}` failed ({status}): {words}")]
    Failed {
        /// What was run.
        command: String,
        /// How it ended.
        status: String,
        /// Its last words.
        words: String,
    },
    /// Apt knows no Debian archive.
    #[error("apt knows no Debian package lists; run `apt-get update` and look at /etc/apt/sources.list.d")]
    NoSources,
    /// The kernel package lacks what a guest needs.
    #[error("the kernel {version} has no {what}")]
    Kernel {
        /// The kernel's version.
        version: String,
        /// What it lacks.
        what: String,
    },
    /// The guest did not come to rest.
    #[error("the guest of the bake did not {what}: {cause}; its console said: {console}")]
    Guest {
        /// What it should have done.
        what: &'static str,
        /// Why not.
        cause: String,
        /// The end of its console.
        console: String,
    },
    /// It was told to stop, by this signal.
    #[error("the bake was stopped by signal {0}; nothing of it is left")]
    Interrupted(i32),
    /// A bake is under way.
    #[error("a bake is under way in {}; wait for its end", .0.display())]
    Baking(PathBuf),
    /// The disk is full.
    #[error("no space left for a bake in {}: {cause}; it needs about 2 GB: free some, or name another place by --image-dir", .dir.display())]
    DiskFull {
        /// The image directory.
        dir: PathBuf,
        /// What did not fit.
        cause: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] skep_engine::Error),
    /// The VMM of the bake failed, and said why.
    #[error("{source}; the VMM said: {words}")]
    Vmm {
        /// What failed.
        source: skep_engine::Error,
        /// Its last words.
        words: String,
    },
    /// The jail failed.
    #[error("the jail of the bake: {0}")]
    Jail(String),
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
    pub(crate) fn io(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |source| Self::Io { what, source }
    }

    /// The same, with the place where the bake worked if what went wrong is that this is full.
    pub(crate) fn within(self, dir: &Path) -> Self {
        let full = match &self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            // A program tells it in words, and we start each in a known language.
            Self::Failed { words, .. } => words.contains("No space left on device"),
            _ => false,
        };
        if full { Self::DiskFull { dir: dir.to_owned(), cause: self.to_string() } } else { self }
    }

    /// The same, with what the VMM said where the engine tells less than that.
    pub(crate) fn with_words(self, words: &str) -> Self {
        match self {
            Self::Engine(source) if !words.is_empty() => Self::Vmm { source, words: words.to_owned() },
            other => other,
        }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Engine(error) | Self::Vmm { source: error, .. } => error.code(),
            _ => ErrorCode::SwarmUnavailable,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_whoever_found_it() {
        let words = "tar: usr: Cannot write: No space left on device".to_owned();
        let failed = Error::Failed { command: "tar".to_owned(), status: "2".to_owned(), words };
        for error in [failed, Error::io("ram")(io::ErrorKind::StorageFull.into())] {
            let said = error.within(Path::new("/images")).to_string();
            assert!(said.starts_with("no space left") && said.contains("/images"), "{said}");
        }
        let other = Error::NoSources.within(Path::new("/images"));
        assert!(matches!(other, Error::NoSources));
    }
}
