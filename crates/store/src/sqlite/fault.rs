//! What goes wrong inside: a refusal, the driver's error or a row that cannot be read. It never leaves `sqlite`.

use std::path::Path;

use rusqlite::ErrorCode as Driver;

use crate::{Cause, Error};

/// What a command or query of this store fails with, until it is told to the caller.
#[derive(Debug)]
pub(super) enum Fault {
    /// The command was refused.
    Refused(Error),
    /// SQLite's own error.
    Driver(rusqlite::Error),
    /// The file cannot be used, for another reason than SQLite's.
    Away(Cause),
    /// What was read, or was about to be written, makes no sense.
    Broken(Cause),
    /// A newer program wrote the database.
    Newer {
        /// Its version.
        found: i64,
    },
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Away(Cause::of(&error))
    }
}

impl Fault {
    /// The same in the words of the store.
    pub(super) fn into_error(self, path: &Path) -> Error {
        let path = path.to_owned();
        match self {
            Self::Refused(error) => error,
            Self::Driver(error) if is_away(&error) => Error::Unavailable { path, source: Cause::of(&error) },
            Self::Driver(error) => Error::Internal { path, source: Cause::of(&error) },
            Self::Away(source) => Error::Unavailable { path, source },
            Self::Broken(source) => Error::Internal { path, source },
            Self::Newer { found } => Error::NewerVersion { path, found, known: super::migrations::KNOWN },
        }
    }
}

/// Whether the file is the matter, not the command.
fn is_away(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            Driver::DatabaseBusy
                | Driver::DatabaseLocked
                | Driver::DatabaseCorrupt
                | Driver::NotADatabase
                | Driver::CannotOpen
                | Driver::PermissionDenied
                | Driver::ReadOnly
                | Driver::DiskFull
                | Driver::SystemIoFailure
                | Driver::FileLockingProtocolFailed
                | Driver::OutOfMemory
        )
    )
}
