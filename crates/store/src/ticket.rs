//! Tickets: commands, queries and what is told of them once it is durable.

use std::time::Duration;

use jiff::Timestamp;
use skep_api::{
    AccountId, KeyId, Label, TicketId, VmId,
    tickets::{Attempt, AttemptOutcome, Priority, Ticket, TicketEvent, TicketStatus},
};
use skep_tickets::{Beat, Command, Edits, NewTicket};

use crate::VmWithoutAttempt;

/// Who acts on a ticket, and when.
#[derive(Debug, Clone)]
pub struct TicketCall {
    /// Whose tickets they are.
    pub account: AccountId,
    /// The key of the call; `None` where the server itself acts.
    pub key: Option<KeyId>,
    /// The VM that the key is bound to: then it reaches that VM's tickets alone.
    pub vm: Option<VmId>,
    /// Now.
    pub at: Timestamp,
    /// The request that caused it.
    pub request_id: Option<String>,
}

/// A request that shall have its effect once, however often it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Once {
    /// The path that it came to.
    pub path: &'static str,
    /// What the caller named it.
    pub key: String,
    /// The SHA-256 of what it asks for.
    pub body: [u8; 32],
}

/// An answer, given now or before.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered<T> {
    /// The answer.
    pub answer: T,
    /// Whether this is a repetition of an earlier answer.
    pub replayed: bool,
}

/// Makes tickets, all of them or none. Event `ticket.created` for each, and `ticket.ready` for those that are.
#[derive(Debug, Clone)]
pub struct CreateTickets {
    /// Who, when.
    pub call: TicketCall,
    /// The tickets, and what others of the command call them.
    pub tickets: Vec<(Option<String>, NewTicket)>,
    /// Whether it shall be done once.
    pub once: Option<Once>,
}

/// Changes a ticket: its fields, or where it stands.
#[derive(Debug, Clone)]
pub struct ChangeTicket {
    /// Who, when.
    pub call: TicketCall,
    /// Which.
    pub id: TicketId,
    /// The versions that the caller knows, one of which it must have.
    pub expected: Option<Vec<u64>>,
    /// Its fields.
    pub edits: Edits,
    /// Where it shall stand.
    pub transition: Option<Command>,
}

/// Renews a lease. No event, no version.
#[derive(Debug, Clone)]
pub struct BeatTicket {
    /// Who, when.
    pub call: TicketCall,
    /// Which.
    pub id: TicketId,
    /// Who beats, for how long.
    pub beat: Beat,
    /// What it does just now.
    pub progress: Option<String>,
}

/// Claims what is ready, most urgent first, then oldest first.
#[derive(Debug, Clone)]
pub struct ClaimTickets {
    /// Who, when.
    pub call: TicketCall,
    /// For whom.
    pub assignee: String,
    /// At most so many.
    pub count: u32,
    /// For how long.
    pub lease: Option<Duration>,
    /// Only these; all where there is none.
    pub priorities: Vec<Priority>,
    /// Only tickets that have all of these.
    pub labels: Vec<Label>,
    /// Whether it shall be done once.
    pub once: Option<Once>,
}

/// What becomes of the tickets that depend on one that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// It is not deleted while there are unfinished ones.
    Refuse,
    /// They depend on it no longer.
    Detach,
    /// They are deleted too, with their own.
    Delete,
}

/// Deletes a ticket. Its history stays. Event `ticket.deleted`.
#[derive(Debug, Clone)]
pub struct DeleteTicket {
    /// Who, when.
    pub call: TicketCall,
    /// Which.
    pub id: TicketId,
    /// The versions that the caller knows, one of which it must have.
    pub expected: Option<Vec<u64>>,
    /// Also while somebody holds it.
    pub force: bool,
    /// What becomes of those that depend on it.
    pub dependents: Dependents,
}

/// What a timer saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUp {
    /// No beat since this one.
    Lease {
        /// The renewal that ran out.
        beats: u64,
    },
    /// The attempt takes longer than it may.
    Runtime,
}

/// Ends an attempt whose time is up, unless it ended or was renewed meanwhile; a VM that lives holds on.
#[derive(Debug, Clone, Copy)]
pub struct EndAttempt {
    /// Which ticket.
    pub ticket: TicketId,
    /// Which attempt.
    pub attempt: u32,
    /// Why.
    pub why: TimeUp,
    /// Now.
    pub at: Timestamp,
}

/// Says that a ticket's `not_before` has passed, unless it has another one meanwhile. Event `ticket.ready`, where it is.
#[derive(Debug, Clone, Copy)]
pub struct WakeTicket {
    /// Which ticket.
    pub ticket: TicketId,
    /// The time that passed.
    pub not_before: Timestamp,
    /// Now.
    pub at: Timestamp,
}

/// What a list of tickets is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TicketFilter {
    /// Any of these; all where there is none.
    pub statuses: Vec<TicketStatus>,
    /// Any of these; all where there is none.
    pub priorities: Vec<Priority>,
    /// Whoever holds or finished it.
    pub assignee: Option<String>,
    /// Only tickets that have all of these.
    pub labels: Vec<Label>,
    /// Whether it can be claimed.
    pub ready: Option<bool>,
    /// A ticket that it depends on.
    pub depends_on: Option<TicketId>,
}

/// The order of a list of tickets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TicketSort {
    /// Oldest first.
    #[default]
    Created,
    /// As they are claimed: most urgent first, then oldest first.
    Priority,
    /// The latest change first.
    Updated,
}

/// Where a page of tickets ended: the last one, by what it was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketPosition {
    /// By its making.
    Created(TicketId),
    /// By its priority, then its making.
    Priority(Priority, TicketId),
    /// By its latest change.
    Updated(Timestamp, TicketId),
}

/// Asks for a page of tickets.
#[derive(Debug, Clone)]
pub struct ListTickets {
    /// Whose.
    pub account: AccountId,
    /// Which.
    pub filter: TicketFilter,
    /// In which order.
    pub sort: TicketSort,
    /// The most that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended. Of another order: from the beginning.
    pub after: Option<TicketPosition>,
    /// Now.
    pub at: Timestamp,
}

/// A page of tickets. It ends early where its records are very large.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketPage {
    /// In the order that was asked for.
    pub tickets: Vec<Ticket>,
    /// The next page's `after`; `None` at the end.
    pub next: Option<TicketPosition>,
}

/// Asks for what happened to a ticket.
#[derive(Debug, Clone, Copy)]
pub struct ReadTicketHistory {
    /// Whose.
    pub account: AccountId,
    /// Which; it may be deleted.
    pub id: TicketId,
    /// The most events that the page holds; at least 1.
    pub limit: u32,
    /// Where the page before ended.
    pub after: Option<u64>,
}

/// What happened to a ticket.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketHistoryPage {
    /// Oldest first.
    pub events: Vec<TicketEvent>,
    /// Oldest first, the latest thousand; on the first page alone.
    pub attempts: Vec<Attempt>,
    /// The next page's `after`; `None` at the end.
    pub next: Option<u64>,
}

/// What metrics show of an account's tickets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketFigures {
    /// The account's name.
    pub account: String,
    /// Its tickets.
    pub counts: TicketCounts,
    /// How many attempts ended in each way, since the store was made.
    pub outcomes: Vec<(AttemptOutcome, u64)>,
    /// Since when the ticket can be claimed that has been ready for the longest time; `None` where none is ready.
    pub oldest_ready: Option<Timestamp>,
}

/// How many tickets are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TicketCounts {
    /// Pending, and not to be claimed yet.
    pub waiting: u64,
    /// Pending, and to be claimed.
    pub ready: u64,
    /// Held.
    pub in_progress: u64,
    /// Completed.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
}

/// What timers and those who wait for work must know. Told once it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketNews {
    /// An attempt began, or was renewed.
    Held(OpenAttempt),
    /// A ticket has no open attempt.
    Free(TicketId),
    /// A ticket waits for its time.
    Waiting(WaitingTicket),
    /// Something can be claimed.
    Ready(AccountId),
    /// A VM shall end, because its attempt at a ticket has ended.
    VmWithoutAttempt(VmWithoutAttempt),
}

/// An attempt that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenAttempt {
    /// Which ticket.
    pub ticket: TicketId,
    /// Which attempt.
    pub attempt: u32,
    /// Which renewal of it.
    pub beats: u64,
    /// How long it holds from this renewal on.
    pub lease: Duration,
    /// How long the attempt may take.
    pub max_runtime: Duration,
}

/// A ticket that waits for its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingTicket {
    /// Which ticket.
    pub ticket: TicketId,
    /// Until when, by the wall clock.
    pub not_before: Timestamp,
    /// How long from now, whatever the wall clock does meanwhile: a rest that the server itself gave.
    pub rest: Option<Duration>,
}
