//! Why the store says no, or cannot say anything.

use std::path::PathBuf;

use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{ErrorCode, ErrorKind, Failure, KeyId, VmId};

/// What every command and query answers.
pub type Result<T> = std::result::Result<T, Error>;

/// A refusal or a fault of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Another valid key of the account has the name.
    #[error("the name `{name}` belongs to another key of this account; take another one or revoke that key")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No such key of this account.
    #[error("no key `{id}`; `GET /api/keys` lists those of this account")]
    UnknownKey {
        /// What was asked for.
        id: KeyId,
    },
    /// The key was revoked, or another one has its name already.
    #[error("the key `{id}` is {state}; {way_out}")]
    KeyNotValid {
        /// Which key.
        id: KeyId,
        /// `revoked` or `rotated already`.
        state: &'static str,
        /// What to do instead.
        way_out: &'static str,
    },
    /// Another account has the name.
    #[error("the name `{name}` belongs to another account; take another one")]
    AccountNameTaken {
        /// The name.
        name: String,
    },
    /// The account `default`, which is never deleted.
    #[error("the account `{DEFAULT_ACCOUNT}` cannot be deleted: it administers the server")]
    DefaultAccountStays,
    /// The account has VMs.
    #[error(
        "the account `{name}` has {vms} VMs that live; end them first, or say `force=true` to end them too"
    )]
    AccountInUse {
        /// Its name.
        name: String,
        /// How many VMs live.
        vms: u32,
    },
    /// No such account.
    #[error("no account `{account}`; `GET /api/accounts` lists those of this server")]
    UnknownAccount {
        /// Its id or its name, as it was asked for.
        account: String,
    },
    /// No such VM, or for a new key: none that lives.
    #[error("no VM `{vm}`; `GET /api/swarm/status` lists those of this account")]
    UnknownVm {
        /// What was asked for.
        vm: VmId,
    },
    /// Nobody on the waitlist by this id or address.
    #[error("nobody is on the waitlist as `{entry}`; `GET /api/waitlist` lists who is")]
    UnknownWaitlistEntry {
        /// What was asked for.
        entry: String,
    },
    /// A newer skep wrote this database.
    #[error(
        "the store {} has version {found}, and this skep knows versions up to {known}; start a newer skep",
        path.display()
    )]
    NewerVersion {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// A file is no store of skep's, or a damaged one.
    #[error("{} is no backup that can be restored: {why}; name one that `skep backup` made", path.display())]
    NotABackup {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The store is locked, full, damaged or gone.
    #[error("the store {} is unavailable; check its disk, its owner and who else has it open", path.display())]
    Unavailable {
        /// The database.
        path: PathBuf,
        /// What happened, for the log.
        source: Cause,
    },
    /// A fault of ours.
    #[error("the store {} failed", path.display())]
    Internal {
        /// The database.
        path: PathBuf,
        /// What happened, for the log.
        source: Cause,
    },
}

/// What happened below the store, in words. For the log only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// Keeps the words of an error, and of all that caused it.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        let mut words = error.to_string();
        let mut deeper = error.source();
        while let Some(cause) = deeper {
            words = format!("{words}: {cause}");
            deeper = cause.source();
        }
        Self(words)
    }

    /// A cause that is no error of anything else.
    pub(crate) fn text(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl Error {
    /// The stable name of the refusal.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NameTaken { .. } | Self::AccountNameTaken { .. } => ErrorCode::NameTaken,
            Self::KeyNotValid { .. } => ErrorCode::KeyNotValid,
            Self::DefaultAccountStays => ErrorCode::AccountProtected,
            Self::AccountInUse { .. } => ErrorCode::AccountInUse,
            Self::UnknownKey { .. } => ErrorCode::UnknownKey,
            Self::UnknownAccount { .. } => ErrorCode::UnknownAccount,
            Self::UnknownVm { .. } => ErrorCode::UnknownVm,
            Self::NotABackup { .. } => ErrorCode::InvalidValue,
            Self::UnknownWaitlistEntry { .. } => ErrorCode::UnknownWaitlistEntry,
            Self::NewerVersion { .. } | Self::Unavailable { .. } => ErrorCode::StoreUnavailable,
            Self::Internal { .. } => ErrorCode::Internal,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Callers learn no path of the server and no cause; both are for the log.
        let message = match &error {
            Error::NewerVersion { .. } | Error::Unavailable { .. } => {
                "the store is unavailable; try again later".to_owned()
            }
            Error::Internal { .. } => "internal error".to_owned(),
            refusal => refusal.to_string(),
        };
        Self::new(error.code(), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_learn_neither_paths_nor_causes() {
        let path = PathBuf::from("/var/lib/skep/server/skep.db");
        let source = Cause::text("disk I/O error");
        for error in [
            Error::Unavailable { path: path.clone(), source: source.clone() },
            Error::Internal { path: path.clone(), source },
            Error::NewerVersion { path, found: 9, known: 1 },
        ] {
            assert!(error.to_string().contains("/var/lib"), "the log names the path: {error}");
            let failure = Failure::from(error);
            assert!(!failure.message.contains("/var/lib"), "{failure}");
            assert!(!failure.message.contains("disk"), "{failure}");
        }
    }
}
