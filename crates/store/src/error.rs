//! Errors of the store: refused commands and failures of the database.

use std::path::PathBuf;

use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{
    DeliveryId, ErrorCode, ErrorKind, Failure, KeyId, TicketId, VmId, VmName, WebhookId,
    templates::TemplateName,
    tickets::{Blocker, TicketStatus},
};

use crate::AccountRoot;

pub type Result<T> = std::result::Result<T, Error>;

/// A refused command, or a failure of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Another valid key of the account has the name.
    #[error(
        "the name `{name}` belongs to another key of this account; choose another one or revoke that key"
    )]
    NameTaken { name: String },
    /// Another running VM of the account has the name.
    #[error(
        "the name `{name}` belongs to the running VM {vm}; choose another name, or end or rename that VM"
    )]
    VmNameTaken { name: VmName, vm: VmId },
    #[error("{}", Failure::unknown_key(id))]
    UnknownKey { id: KeyId },
    /// The key was revoked or rotated.
    #[error("the key `{id}` is {state}; {way_out}")]
    KeyNotValid {
        id: KeyId,
        /// `revoked` or `rotated already`.
        state: &'static str,
        way_out: &'static str,
    },
    #[error("the name `{name}` belongs to another account; choose another one")]
    AccountNameTaken { name: String },
    /// The account `default`, which is never deleted.
    #[error("the account `{DEFAULT_ACCOUNT}` cannot be deleted: it administers the server")]
    DefaultAccountStays,
    #[error(
        "the account `{name}` has {vms} running VMs; end them first, or use `force=true` to end them too"
    )]
    AccountInUse {
        name: String,
        /// Number of running VMs.
        vms: u32,
    },
    #[error("{}", Failure::unknown_account(account))]
    UnknownAccount {
        /// The id or name in the request.
        account: String,
    },
    /// No such VM, or, for a new key, no such running VM.
    #[error("no VM `{vm}`; list the account's VMs to see their ids and names")]
    UnknownVm { vm: VmId },
    /// The waitlist has no entry with this id or address.
    #[error("no waitlist entry `{entry}`; list the waitlist to see its entries")]
    UnknownWaitlistEntry { entry: String },
    /// No such template that the account sees.
    #[error("no template `{template}`; list the templates to see those that this account may use")]
    UnknownTemplate {
        /// The name or id in the request.
        template: String,
    },
    #[error(
        "the name `{name}` belongs to another template; choose another one, or delete that template first"
    )]
    TemplateNameTaken { name: TemplateName },
    /// The template belongs to the server, or to another account.
    #[error("the template `{name}` does not belong to this account, which therefore cannot delete it")]
    TemplateProtected { name: TemplateName },
    /// VMs that live were restored from the template, or other templates were made from it.
    #[error("the template `{name}` is used by {users}; end or delete them first")]
    TemplateInUse { name: TemplateName, users: String },
    #[error("this account has {most} templates, which is the maximum; delete one first")]
    TooManyTemplates { most: u32 },
    #[error(
        "{most} templates of this account are being built, which is the maximum; wait until one is ready"
    )]
    TooManyBuilds { most: u32 },
    #[error("no ticket `{id}`; list the account's tickets to see their ids")]
    UnknownTicket { id: String },
    /// A dependency is not a ticket of this account.
    #[error(
        "`dependencies` names `{id}`, which is not a ticket of this account; list the account's tickets to see their ids"
    )]
    UnknownDependency { id: TicketId },
    /// The transition rules refuse the command.
    #[error(transparent)]
    Ticket(#[from] skep_tickets::Error),
    /// A ticket that is in progress cannot be deleted without `force`.
    #[error(
        "`{id}` is held by {holder} (attempt {attempt}); wait until the attempt ends, or use `force=true` to delete the ticket anyway"
    )]
    TicketHeld { id: TicketId, holder: String, attempt: u32 },
    /// Unfinished tickets depend on the ticket to delete.
    #[error(
        "{total} unfinished tickets depend on `{id}`: {}; use `dependents=detach` or `dependents=delete`",
        named(.dependents, *.total)
    )]
    HasDependents {
        id: TicketId,
        /// Number of unfinished tickets that depend on it.
        total: usize,
        /// The first of them; may be fewer than `total`.
        dependents: Vec<Blocker>,
    },
    /// The ticket has changed since the caller read it.
    #[error("`{id}` has version {version}, which does not match `If-Match`; read it again")]
    VersionStale { id: TicketId, version: u64 },
    /// A root is equal to, inside or a parent of a root of another account.
    #[error(
        "`roots`: {} overlaps with {}, which is a root of the account `{}`; choose another directory",
        path.display(), other.path.display(), other.account
    )]
    RootTaken {
        path: PathBuf,
        /// The overlapping root.
        other: AccountRoot,
    },
    /// A key that is bound to a VM is not allowed to do this.
    #[error(
        "the key of VM `{vm}` can only renew or finish the ticket that this VM holds; use another key to {what}"
    )]
    VmKeyLimited { vm: VmId, what: &'static str },
    /// The idempotency key was already used for a different request.
    #[error(
        "the `Idempotency-Key` `{key}` was used with another body in the last 24 hours; use a new key for a new request"
    )]
    IdempotencyMismatch { key: String },
    #[error("{}", Failure::unknown_webhook(id))]
    UnknownWebhook { id: WebhookId },
    /// No such delivery of this webhook.
    #[error("{}", Failure::unknown_delivery(id))]
    UnknownDelivery { id: DeliveryId },
    #[error("the webhook `{id}` is disabled; update it with `enabled: true`")]
    WebhookDisabled { id: WebhookId },
    #[error("this account has {most} webhooks, which is the maximum; delete one first")]
    TooManyWebhooks { most: u32 },
    #[error(
        "this account has {open} open tickets, and it may have {most}, so {more} more cannot be opened; complete, fail or delete some first"
    )]
    TooManyTickets { open: u64, more: u64, most: u64 },
    /// The database was written by a newer version of skep.
    #[error(
        "the store {} has version {found}, and this skep knows versions up to {known}; start a newer skep",
        path.display()
    )]
    NewerVersion {
        path: PathBuf,
        found: i64,
        /// The newest schema version that this program supports.
        known: i64,
    },
    /// The ticket has no such log.
    #[error(
        "{}the ticket `{id}` has no log: only commands that a boot started for a ticket have logs, which are kept for 30 days",
        attempt.map_or_else(String::new, |attempt| format!("attempt {attempt} of "))
    )]
    UnknownLog {
        id: skep_api::TicketId,
        /// The attempt in the request, if any.
        attempt: Option<u32>,
    },
    /// The file is not a skep database, or is damaged.
    #[error("{} is not a backup that can be restored: {why}; give a file that `skep backup` wrote", path.display())]
    NotABackup { path: PathBuf, why: String },
    /// The database is locked, full, damaged or missing.
    #[error(
        "the store {} is unavailable; check the disk, the owner of the file and other processes that have it open",
        path.display()
    )]
    Unavailable {
        path: PathBuf,
        /// For the log only.
        source: Cause,
    },
    /// A bug in the store.
    #[error("the store {} failed", path.display())]
    Internal {
        path: PathBuf,
        /// For the log only.
        source: Cause,
    },
}

/// Formats the ids of tickets, and how many of `total` are not included.
fn named(tickets: &[Blocker], total: usize) -> String {
    let format_blocker = |one: &Blocker| match one.status {
        TicketStatus::InProgress => format!("{} (in_progress)", one.id),
        _ => one.id.to_string(),
    };
    let list = tickets.iter().map(format_blocker).collect::<Vec<_>>().join(", ");
    match total.saturating_sub(tickets.len()) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Text of an underlying error, for the log only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// The messages of an error and of its chain of sources.
    pub(crate) fn from_error(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut deeper = error.source();
        while let Some(cause) = deeper {
            message = format!("{message}: {cause}");
            deeper = cause.source();
        }
        Self(message)
    }

    /// A cause that has no underlying error.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NameTaken { .. }
            | Self::AccountNameTaken { .. }
            | Self::VmNameTaken { .. }
            | Self::TemplateNameTaken { .. } => ErrorCode::NameTaken,
            Self::UnknownTemplate { .. } => ErrorCode::UnknownTemplate,
            Self::TemplateProtected { .. } => ErrorCode::TemplateProtected,
            Self::TemplateInUse { .. } => ErrorCode::TemplateInUse,
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
            Self::TooManyWebhooks { .. }
            | Self::TooManyTickets { .. }
            | Self::TooManyTemplates { .. }
            | Self::TooManyBuilds { .. } => ErrorCode::QuotaExceeded,
            Self::NewerVersion { .. } | Self::Unavailable { .. } => ErrorCode::StoreUnavailable,
            Self::Internal { .. } => ErrorCode::Internal,
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // Paths of the server and causes are for the log and not disclosed to callers.
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
        let source = Cause::new("disk I/O error");
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
