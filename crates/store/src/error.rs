//! Why the store says no, or cannot say anything.

use std::path::PathBuf;

use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{
    ErrorCode, ErrorKind, Failure, KeyId, TicketId, VmId, VmName, WebhookId,
    tickets::{Blocker, TicketStatus},
};

use crate::AccountRoot;

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
    /// Another living VM of the account has the name.
    #[error(
        "the name `{name}` belongs to the VM {vm}, which lives; choose another name, or end or rename that VM"
    )]
    VmNameTaken {
        /// The name.
        name: VmName,
        /// The VM that has it.
        vm: VmId,
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
    /// No such ticket of this account.
    #[error("no ticket `{id}`; `GET /api/tickets` lists those of this account")]
    UnknownTicket {
        /// What was asked for.
        id: String,
    },
    /// A ticket that shall be depended on is none of this account.
    #[error("`dependencies` names `{id}`, which is no ticket of this account; `GET /api/tickets` lists them")]
    UnknownDependency {
        /// What was named.
        id: TicketId,
    },
    /// The rules of tickets say no.
    #[error(transparent)]
    Ticket(#[from] skep_tickets::Refusal),
    /// A ticket that somebody holds shall be deleted.
    #[error(
        "`{id}` is held by {holder} (attempt {attempt}); wait for its end, or say `force=true` to delete it all the same"
    )]
    TicketHeld {
        /// Which.
        id: TicketId,
        /// By whom.
        holder: String,
        /// In which attempt.
        attempt: u32,
    },
    /// Unfinished tickets depend on one that shall be deleted.
    #[error(
        "{total} unfinished tickets depend on `{id}`: {}; say `dependents=detach` or `dependents=delete`",
        named(.dependents, *.total)
    )]
    HasDependents {
        /// Which.
        id: TicketId,
        /// How many depend on it.
        total: usize,
        /// The first of them.
        dependents: Vec<Blocker>,
    },
    /// The ticket is not as the caller knows it.
    #[error("`{id}` has version {version}, which `If-Match` does not name; read it again")]
    VersionStale {
        /// Which.
        id: TicketId,
        /// Its version.
        version: u64,
    },
    /// A root that would be equal to, inside or around another account's.
    #[error(
        "`roots`: {} is {}, lies in it, or holds it, which is a root of the account `{}`; name another folder",
        path.display(), other.path.display(), other.account
    )]
    RootTaken {
        /// What was asked for.
        path: PathBuf,
        /// The other account's.
        other: AccountRoot,
    },
    /// A key of one VM wants more than it may.
    #[error(
        "the key of VM `{vm}` only beats and finishes the ticket that this VM holds; use another key to {what}"
    )]
    VmKeyLimited {
        /// The VM.
        vm: VmId,
        /// What was asked.
        what: &'static str,
    },
    /// The request's name was used for another one.
    #[error(
        "the `Idempotency-Key` `{key}` came with another body within the last 24 hours; take a new one for a new request"
    )]
    IdempotencyMismatch {
        /// The name.
        key: String,
    },
    /// No such webhook of this account.
    #[error("no webhook `{id}`; `GET /api/webhooks` lists those of this account")]
    UnknownWebhook {
        /// What was asked for.
        id: String,
    },
    /// No such delivery of this webhook.
    #[error(
        "no delivery `{id}` of this webhook; `GET /api/webhooks/ID/deliveries` lists them while their events are kept"
    )]
    UnknownDelivery {
        /// What was asked for.
        id: String,
    },
    /// Nothing is sent by this webhook.
    #[error("the webhook `{id}` is disabled; enable it by `PATCH /api/webhooks/{id}` with `enabled: true`")]
    WebhookDisabled {
        /// Which.
        id: WebhookId,
    },
    /// The account has as many webhooks as it may have.
    #[error("this account has {most} webhooks, the most that it may have; delete one first")]
    TooManyWebhooks {
        /// How many.
        most: u32,
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
    /// The ticket has no such log.
    #[error(
        "{}the ticket `{id}` has no log: logs are of commands that `POST /api/swarm/boot` started for a ticket, and are kept for \
         30 days",
        attempt.map_or_else(String::new, |attempt| format!("attempt {attempt} of "))
    )]
    UnknownLog {
        /// The ticket.
        id: skep_api::TicketId,
        /// The attempt that was asked for.
        attempt: Option<u32>,
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

/// Tickets as a text, as many as are named.
fn named(tickets: &[Blocker], total: usize) -> String {
    let word = |one: &Blocker| match one.status {
        TicketStatus::InProgress => format!("{} (in_progress)", one.id),
        _ => one.id.to_string(),
    };
    let words = tickets.iter().map(word).collect::<Vec<_>>().join(", ");
    match total.saturating_sub(tickets.len()) {
        0 => words,
        more => format!("{words} and {more} more"),
    }
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
            Self::NameTaken { .. } | Self::AccountNameTaken { .. } | Self::VmNameTaken { .. } => {
                ErrorCode::NameTaken
            }
            Self::KeyNotValid { .. } => ErrorCode::KeyNotValid,
            Self::DefaultAccountStays => ErrorCode::AccountProtected,
            Self::AccountInUse { .. } => ErrorCode::AccountInUse,
            Self::UnknownKey { .. } => ErrorCode::UnknownKey,
            Self::UnknownAccount { .. } => ErrorCode::UnknownAccount,
            Self::UnknownVm { .. } => ErrorCode::UnknownVm,
            Self::NotABackup { .. } | Self::RootTaken { .. } => ErrorCode::InvalidValue,
            Self::UnknownWaitlistEntry { .. } => ErrorCode::UnknownWaitlistEntry,
            Self::UnknownTicket { .. } => ErrorCode::UnknownTicket,
            Self::UnknownDependency { .. } => ErrorCode::UnknownDependency,
            Self::Ticket(refusal) => refusal.code(),
            Self::TicketHeld { .. } => ErrorCode::TicketState,
            Self::HasDependents { .. } => ErrorCode::HasDependents,
            Self::VersionStale { .. } => ErrorCode::VersionStale,
            Self::VmKeyLimited { .. } => ErrorCode::VmKeyLimited,
            Self::IdempotencyMismatch { .. } => ErrorCode::IdempotencyMismatch,
            Self::UnknownLog { .. } => ErrorCode::UnknownLog,
            Self::UnknownWebhook { .. } => ErrorCode::UnknownWebhook,
            Self::UnknownDelivery { .. } => ErrorCode::UnknownDelivery,
            Self::WebhookDisabled { .. } => ErrorCode::WebhookDisabled,
            Self::TooManyWebhooks { .. } => ErrorCode::QuotaExceeded,
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
