//! Persistent state of the server: a trait for each subject, their sum [`Store`], its SQLite implementation, and the test
//! suite for all stores.
//!
//! Each method is one command in one transaction, which contains the change and its events. No database type is part of
//! the public API.

mod account;
mod audit;
mod commits;
mod error;
mod event;
mod event_kind;
mod git;
mod health;
mod key;
mod run_log;
mod session;
pub mod sqlite;
mod store;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
mod template;
mod ticket;
mod vm;
mod waitlist;
mod webhook;

pub use account::{
    Account, AccountDeleted, AccountPage, AccountRoot, AccountStore, ChangeAccount, CreateAccount,
    DeleteAccount, EnsureDefaultAccount, ListAccounts, SetAccountRoots,
};
pub use audit::{
    AuditFilter, AuditPage, AuditStore, ListAudit, NewAuditEntry, OutcomeFilter, TrimHistory, Trimmed,
};
pub use commits::{Commit, CommitObserver};
pub use error::{Cause, Error, Result};
pub use event::{Event, EventPage, EventScope, EventSpan, EventStore, ReadEvents, TicketWithSpan};
pub use event_kind::{EventFamily, EventKind};
pub use git::{GitCredential, GitStore, SetGitCredential};
pub use health::HealthStore;
pub use key::{
    ADMIN_KEY_NAME, EnsureAdminKey, KeyPage, KeyRecord, KeyStore, KeyUse, ListKeys, NewKey, PresentedKey,
    RevokeAllKeys, RevokeKey, RotateKey,
};
pub use run_log::{AppendLog, LogPage, LogPosition, MAX_ACCOUNT_LOG_BYTES, MIN_LOG_BYTES, ReadLog};
pub use session::{NewSession, NewSessionLink, PresentedSession, SessionStore, SessionUse};
pub use sqlite::{SqliteSettings, SqliteStore};
pub use store::Store;
pub use template::{
    AccountDisk, CreateTemplate, DeleteTemplate, EnsureBaseTemplate, KnownTemplate, ListTemplates,
    RecordSnapshot, RecordTemplateState, TemplatePage, TemplateStatus, TemplateStore,
};
pub use ticket::{
    Answered, AttemptTimer, BeatTicket, ChangeTicket, ClaimTickets, CreateTickets, DeleteTicket, Dependents,
    EndAttempt, IdempotentRequest, ListTickets, OpenAttempt, ReadTicketHistory, TicketCall, TicketCounts,
    TicketFilter, TicketHistoryPage, TicketMetrics, TicketPage, TicketPosition, TicketSignal, TicketSort,
    TicketStore, WaitingTicket, WakeTicket,
};
pub use vm::{
    BootAttempt, ChangeVm, CommandOutcome, EndVms, Ended, ListVms, MAX_FORMER_PIDS, Pause, PauseChange,
    RecordBoots, RecordCommandEnd, RecordEnd, RecordPause, RecordUnusableSnapshots, UnusableSnapshot,
    VmAttributes, VmBooted, VmChange, VmEnd, VmFilter, VmMetrics, VmOnDisk, VmPage, VmRecord, VmSet, VmStore,
    VmToEnd, VmWithoutAttempt,
};
pub use waitlist::{JoinWaitlist, ListWaitlist, RemoveFromWaitlist, WaitlistPage, WaitlistStore};
pub use webhook::{
    ChangeWebhook, CreateWebhook, DeleteWebhook, DeliveryContent, DeliveryOutcome, DeliveryPage, Disabled,
    DueDelivery, DueWebhook, EnqueueDeliveries, Enqueued, ListDeliveries, ListDue, ListWebhooks,
    PreviousSecret, RecordAttempt, Redeliver, RotateWebhook, TestWebhook, Webhook, WebhookPage, WebhookStore,
};
