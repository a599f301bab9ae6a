//! Commands and queries for tickets, and the signals that are sent once a change is durable.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{
    AccountId, KeyId, Label, TicketId, VmId,
    tickets::{
        Attempt, AttemptOutcome, Beat, ClaimedTickets, CreatedTickets, DeletedTicket, Heartbeat, Priority,
        Ticket, TicketEvent, TicketStatus, TicketSummary, TicketTotals, Why,
    },
};
use skep_tickets::{ClaimReady, Command, Edits, NewTicket};
use tokio::sync::broadcast;

use crate::{Result, VmWithoutAttempt};

/// The methods of a [`Store`](crate::Store) for tickets.
#[async_trait]
#[warn(missing_docs)]
pub trait TicketStore: Send + Sync {
    /// Creates tickets, all of them or none; fails with `UnknownAccount`, `UnknownDependency`, `IdempotencyMismatch`.
    async fn create_tickets(&self, command: CreateTickets) -> Result<Answered<CreatedTickets>>;
    /// Changes a ticket and returns its record; fails with `UnknownTicket`, `VersionStale`, `UnknownDependency`,
    /// `VmKeyLimited`, and with `Ticket` if the transition rules refuse the change.
    async fn change_ticket(&self, command: ChangeTicket) -> Result<Ticket>;
    /// Renews a lease; fails with `UnknownTicket`, and with `Ticket` if the lease is lost.
    async fn beat_ticket(&self, command: BeatTicket) -> Result<Beat>;
    /// Claims ready tickets, possibly none; fails with `IdempotencyMismatch`. Concurrent calls get different tickets.
    async fn claim_tickets(&self, command: ClaimTickets) -> Result<Answered<ClaimedTickets>>;
    /// Deletes a ticket; fails with `UnknownTicket`, `VersionStale`, `TicketHeld`, `HasDependents`.
    async fn delete_ticket(&self, command: DeleteTicket) -> Result<DeletedTicket>;
    /// Ends an attempt whose timer fired; returns whether it was ended.
    async fn end_attempt(&self, command: EndAttempt) -> Result<bool>;
    /// Marks a ticket's `not_before` as passed; returns whether that changed anything.
    async fn wake_ticket(&self, command: WakeTicket) -> Result<bool>;
    /// Returns a ticket of this account; fails with `UnknownTicket`.
    async fn ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Ticket>;
    /// Returns a ticket that this VM holds or held, or a direct dependency of such a ticket; fails with
    /// `UnknownTicket`.
    async fn ticket_of_vm(&self, account: AccountId, vm: VmId, id: TicketId, at: Timestamp)
    -> Result<Ticket>;
    /// Returns a page of an account's tickets; fails with `UnknownTicket` for the one of `related_to`.
    async fn list_tickets(&self, query: ListTickets) -> Result<TicketPage>;
    /// Like [`list_tickets`](Self::list_tickets), without reading descriptions, results and metadata.
    async fn list_ticket_summaries(&self, query: ListTickets) -> Result<TicketPage<TicketSummary>>;
    /// Returns how many tickets an account has. The cost does not depend on the number of tickets, except of those
    /// that wait for a time alone.
    async fn ticket_totals(&self, account: AccountId) -> Result<TicketTotals>;
    /// Returns a page of the history of a ticket, which may be deleted; fails with `UnknownTicket`.
    async fn ticket_history(&self, query: ReadTicketHistory) -> Result<TicketHistoryPage>;
    /// Returns why a ticket is not ready or not progressing; fails with `UnknownTicket`.
    async fn why_ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Why>;
    /// Extends every open lease to its full length from `at`. The server does so when it starts, so that the expiry
    /// that callers read matches its timers. Does not count as a renewal, writes no event and keeps versions.
    async fn restart_leases(&self, at: Timestamp) -> Result<()>;
    /// Returns the open attempts of all accounts.
    async fn open_attempts(&self) -> Result<Vec<OpenAttempt>>;
    /// Returns metrics about the tickets of one account or of all. The cost does not depend on the number of tickets.
    async fn ticket_metrics(&self, account: Option<AccountId>) -> Result<Vec<TicketMetrics>>;
    /// Returns the tickets of all accounts whose `not_before` is in the future.
    async fn waiting_tickets(&self) -> Result<Vec<WaitingTicket>>;
    /// Subscribes to changes that timers and waiting claims react to, sent once they are durable. A receiver that lags
    /// must read [`open_attempts`](Self::open_attempts) and [`waiting_tickets`](Self::waiting_tickets) again.
    fn ticket_signals(&self) -> broadcast::Receiver<TicketSignal>;
}

/// Caller and time of a command on tickets.
#[derive(Debug, Clone)]
pub struct TicketCall {
    pub account: AccountId,
    /// The key of the call; `None` where the server itself acts.
    pub key: Option<KeyId>,
    /// The VM that the key is bound to, which restricts the call to tickets of that VM.
    pub vm: Option<VmId>,
    pub at: Timestamp,
    pub request_id: Option<String>,
}

/// Identifies a request with an idempotency key, which is executed only once however often it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotentRequest {
    pub path: &'static str,
    /// Value of the header `Idempotency-Key`.
    pub key: String,
    /// SHA-256 of the request body.
    pub body_hash: [u8; 32],
}

/// An answer, either new or repeated for an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered<T> {
    pub answer: T,
    /// Whether the answer is that of an earlier request.
    pub replayed: bool,
}

/// Creates tickets, all of them or none. Writes an event `ticket.created` for each, and `ticket.ready` for those that
/// are ready.
#[derive(Debug, Clone)]
pub struct CreateTickets {
    pub call: TicketCall,
    /// The tickets, each with the name by which dependencies within this command refer to it.
    pub tickets: Vec<(Option<String>, NewTicket)>,
    pub idempotency: Option<IdempotentRequest>,
}

/// Changes fields or the state of a ticket.
#[derive(Debug, Clone)]
pub struct ChangeTicket {
    pub call: TicketCall,
    pub id: TicketId,
    /// Versions from `If-Match`; the command fails unless one of them is current.
    pub expected: Option<Vec<u64>>,
    pub edits: Edits,
    pub transition: Option<Command>,
}

/// Renews a lease. Writes no event and keeps the version.
#[derive(Debug, Clone)]
pub struct BeatTicket {
    pub call: TicketCall,
    pub id: TicketId,
    pub beat: Heartbeat,
}

/// Claims ready tickets, most urgent first, then oldest first.
#[derive(Debug, Clone)]
pub struct ClaimTickets {
    pub call: TicketCall,
    pub claim: ClaimReady,
    pub idempotency: Option<IdempotentRequest>,
}

/// How to treat the tickets that depend on a deleted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// Refuse the deletion if any of them is unfinished.
    Refuse,
    /// Remove the dependency.
    Detach,
    /// Delete them too, recursively.
    Delete,
}

/// Deletes a ticket. Its history is kept. Writes an event `ticket.deleted`.
#[derive(Debug, Clone)]
pub struct DeleteTicket {
    pub call: TicketCall,
    pub id: TicketId,
    /// Versions from `If-Match`; the command fails unless one of them is current.
    pub expected: Option<Vec<u64>>,
    /// Delete the ticket even if it is in progress.
    pub force: bool,
    pub dependents: Dependents,
}

/// The timer that fired for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptTimer {
    Lease {
        /// Number of renewals when the timer was set; the lease was renewed meanwhile if it is higher now.
        beats: u64,
    },
    /// The attempt exceeded its maximum runtime.
    Runtime,
}

/// Ends an attempt whose lease or maximum runtime expired, unless it has ended or been renewed meanwhile. A lease that
/// is held by a running VM is renewed instead.
#[derive(Debug, Clone, Copy)]
pub struct EndAttempt {
    pub ticket: TicketId,
    pub attempt: u32,
    pub timer: AttemptTimer,
    pub at: Timestamp,
}

/// Marks a ticket's `not_before` as passed, unless it has changed meanwhile. Writes an event `ticket.ready` if the
/// ticket is ready.
#[derive(Debug, Clone, Copy)]
pub struct WakeTicket {
    pub ticket: TicketId,
    pub not_before: Timestamp,
    pub at: Timestamp,
}

/// Conditions that listed tickets satisfy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TicketFilter {
    /// Any of these; empty matches all.
    pub statuses: Vec<TicketStatus>,
    /// Any of these; empty matches all.
    pub priorities: Vec<Priority>,
    /// The assignee that holds or finished the ticket.
    pub assignee: Option<String>,
    /// Only tickets that have all of these labels.
    pub labels: Vec<Label>,
    /// Whether the ticket can be claimed.
    pub ready: Option<bool>,
    /// Only tickets that depend on this one.
    pub depends_on: Option<TicketId>,
    /// Only tickets that are connected with this one by dependencies in either direction, itself included.
    pub related_to: Option<TicketId>,
    /// Only tickets whose title or id contains this text, without regard to case.
    pub search: Option<String>,
}

/// The order of a list of tickets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TicketSort {
    /// Oldest first.
    #[default]
    Created,
    /// In the order of claims: most urgent first, then oldest first.
    Priority,
    /// Most recently changed first.
    Updated,
}

/// Cursor of a list of tickets: the sort key of the last ticket on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketPosition {
    Created(TicketId),
    Priority(Priority, TicketId),
    Updated(Timestamp, TicketId),
}

#[derive(Debug, Clone)]
pub struct ListTickets {
    pub account: AccountId,
    pub filter: TicketFilter,
    pub sort: TicketSort,
    /// Page size; at least 1.
    pub limit: u32,
    /// Cursor. One of a different sort order is ignored.
    pub after: Option<TicketPosition>,
    pub at: Timestamp,
}

/// A page of tickets. It has fewer than `limit` tickets if their records are very large, or if a search examined many.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketPage<T = Ticket> {
    pub tickets: Vec<T>,
    /// With `related_to`: whether more than a thousand tickets are connected; the page is then of the nearest thousand.
    pub truncated: Option<bool>,
    /// `after` of the next page; `None` on the last page.
    pub next: Option<TicketPosition>,
}

/// Reads the history of a ticket.
#[derive(Debug, Clone, Copy)]
pub struct ReadTicketHistory {
    pub account: AccountId,
    /// May be deleted.
    pub id: TicketId,
    /// Maximum number of events; at least 1.
    pub limit: u32,
    /// Cursor: only events after this sequence.
    pub after: Option<u64>,
}

/// A page of the history of a ticket.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketHistoryPage {
    /// Oldest first.
    pub events: Vec<TicketEvent>,
    /// The latest thousand, oldest first. Only on the first page.
    pub attempts: Vec<Attempt>,
    /// `after` of the next page; `None` on the last page.
    pub next: Option<u64>,
}

/// Metrics about the tickets of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketMetrics {
    pub account: String,
    pub counts: TicketCounts,
    /// Number of attempts for each outcome since the store was created.
    pub outcomes: Vec<(AttemptOutcome, u64)>,
    /// When the ticket that has been ready for the longest time became ready; `None` if none is ready.
    pub oldest_ready: Option<Timestamp>,
}

/// Number of tickets in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TicketCounts {
    /// Pending and not claimable yet.
    pub waiting: u64,
    /// Pending and claimable.
    pub ready: u64,
    pub in_progress: u64,
    pub completed: u64,
    pub failed: u64,
}

/// A change that timers and waiting claims react to. Sent once the change is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketSignal {
    /// An attempt started or its lease was renewed.
    Held(OpenAttempt),
    /// A ticket has no open attempt (any more).
    NotHeld(TicketId),
    /// A ticket has a `not_before` in the future.
    Waiting(WaitingTicket),
    /// A ticket of the account became claimable.
    Ready(AccountId),
    /// A VM must be ended, because its attempt at a ticket has ended.
    VmWithoutAttempt(VmWithoutAttempt),
}

/// An attempt that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenAttempt {
    pub ticket: TicketId,
    pub attempt: u32,
    /// Number of renewals of the lease so far.
    pub beats: u64,
    /// Length of the lease from the latest renewal on.
    pub lease: Duration,
    pub max_runtime: Duration,
}

/// A ticket that cannot be claimed before a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingTicket {
    pub ticket: TicketId,
    /// Wall-clock time.
    pub not_before: Timestamp,
    /// Back-off that the server set, as a duration from now on the monotonic clock; takes precedence over `not_before`.
    pub backoff: Option<Duration>,
}
