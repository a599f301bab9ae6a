//! Persistent state of the server: the [`Store`] trait, its SQLite implementation and the test suite for all stores.
//!
//! Each method is one command in one transaction, which contains the change and its events. No database type is part of
//! the public API.

mod account;
mod audit;
mod commits;
mod error;
mod event;
mod git;
mod key;
mod run_log;
mod session;
pub mod sqlite;
mod store;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
mod ticket;
mod vm;
mod waitlist;
mod webhook;

pub use account::{
    Account, AccountDeleted, AccountPage, AccountRoot, ChangeAccount, CreateAccount, DeleteAccount,
    EnsureDefaultAccount, ListAccounts, SetAccountRoots,
};
pub use audit::{AuditFilter, AuditPage, ListAudit, NewAuditEntry, OutcomeFilter, TrimHistory, Trimmed};
pub use commits::{Commit, CommitObserver};
pub use error::{Cause, Error, Result};
pub use event::{Event, EventKind, EventPage, EventSpan, EventsOf, ReadEvents, TicketNow};
pub use git::{GitCredential, SetGitCredential};
pub use key::{
    ADMIN_KEY_NAME, EnsureAdminKey, KeyPage, KeyRecord, KeyUse, ListKeys, NewKey, PresentedKey,
    RevokeAllKeys, RevokeKey, RotateKey,
};
pub use run_log::{ACCOUNT_LOGS, AppendLog, KEPT_LOG, LogPage, LogPosition, ReadLog};
pub use session::{NewSession, PresentedSession};
pub use sqlite::{SqliteSettings, SqliteStore};
pub use store::Store;
pub use ticket::{
    Answered, BeatTicket, ChangeTicket, ClaimTickets, CreateTickets, DeleteTicket, Dependents, EndAttempt,
    ListTickets, Once, OpenAttempt, ReadTicketHistory, TicketCall, TicketCounts, TicketFigures, TicketFilter,
    TicketHistoryPage, TicketNews, TicketPage, TicketPosition, TicketSort, TimeUp, WaitingTicket, WakeTicket,
};
pub use vm::{
    BootedFor, ChangeVm, CommandOutcome, EndVms, Ended, ListVms, RecordBoots, RecordCommandEnd, RecordEnd,
    VmBooted, VmEnd, VmFigures, VmFilter, VmPage, VmRecord, VmWithoutAttempt, VmsOf,
};
pub use waitlist::{JoinWaitlist, ListWaitlist, RemoveFromWaitlist, WaitlistPage};
pub use webhook::{
    AfterAttempt, ChangeWebhook, CreateWebhook, DeleteWebhook, DeliveryContent, DeliveryPage, Disabled,
    DueDelivery, DueWebhook, EnqueueDeliveries, Enqueued, ListDeliveries, ListDue, ListWebhooks,
    PreviousSecret, RecordAttempt, Redeliver, RotateWebhook, TestWebhook, Webhook, WebhookPage,
};
