//! The internal error type of the SQLite implementation. It is converted to [`Error`] before it leaves this module
//! tree.

use std::path::Path;

use rusqlite::ErrorCode as Driver;

use crate::{Cause, Error};

/// Why a command or query failed.
#[derive(Debug)]
pub(super) enum SqliteError {
    Refused(Error),
    Driver(rusqlite::Error),
    /// The file cannot be used, for a reason that SQLite did not report.
    Unavailable(Cause),
    /// A value that was read or was to be written is invalid, or an invariant does not hold.
    Internal(Cause),
    /// A newer program wrote the database, with this version.
    NewerVersion {
        found: i64,
    },
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<Error> for SqliteError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<std::io::Error> for SqliteError {
    fn from(error: std::io::Error) -> Self {
        Self::Unavailable(Cause::from_error(&error))
    }
}

impl SqliteError {
    /// Converts to the public error; `path` is that of the database.
    pub(super) fn into_error(self, path: &Path) -> Error {
        let path = path.to_owned();
        match self {
            Self::Refused(error) => error,
            Self::Driver(error) if is_unavailable(&error) => {
                Error::Unavailable { path, source: Cause::from_error(&error) }
            }
            Self::Driver(error) => Error::Internal { path, source: Cause::from_error(&error) },
            Self::Unavailable(source) => Error::Unavailable { path, source },
            Self::Internal(source) => Error::Internal { path, source },
            Self::NewerVersion { found } => {
                Error::NewerVersion { path, found, known: super::migrations::LATEST }
            }
        }
    }
}

/// Whether the database file is the cause, not the command.
fn is_unavailable(error: &rusqlite::Error) -> bool {
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
