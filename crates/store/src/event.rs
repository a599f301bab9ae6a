//! Events: what happened, in the order of commits, written with the change that they tell of.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Map, Value};
use skep_api::{AccountId, TicketId, events::EventId, tickets::Ticket};

/// What sort of event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A key was made. Body: `key`, `name`, `prefix`, `role`, `scopes`, `vm`, `expires_at`.
    KeyCreated,
    /// A key was revoked. Body: `key`, `name`, `vm`.
    KeyRevoked,
    /// Another key took a key's name. Body: `key`, `name`, `successor`.
    KeyRotated,
    /// A ticket was made. Its record. Body of all of these: `ticket`, `actor`, `changes`, `attempt`.
    TicketCreated,
    /// Fields of a ticket changed.
    TicketUpdated,
    /// A ticket can be claimed from now on.
    TicketReady,
    /// An attempt at a ticket began.
    TicketClaimed,
    /// A ticket that this one depends on failed.
    TicketBlocked,
    /// An attempt was given back.
    TicketReleased,
    /// An attempt ended by itself: by its lease, its VM, or its time.
    TicketLeaseExpired,
    /// A ticket is done.
    TicketCompleted,
    /// A ticket was given up.
    TicketFailed,
    /// A ticket that failed is retried.
    TicketReopened,
    /// A ticket was deleted.
    TicketDeleted,
    /// A VM was booted. Body: `vm`, `pid`.
    VmBooted,
    /// A VM has another name, or none. Body: `vm`, `pid`, `name`, `from`.
    VmRenamed,
    /// A VM ended. Body: `vm`, `pid`, `reason`.
    VmEnded,
}

impl EventKind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::KeyCreated,
        Self::KeyRevoked,
        Self::KeyRotated,
        Self::TicketCreated,
        Self::TicketUpdated,
        Self::TicketReady,
        Self::TicketClaimed,
        Self::TicketBlocked,
        Self::TicketReleased,
        Self::TicketLeaseExpired,
        Self::TicketCompleted,
        Self::TicketFailed,
        Self::TicketReopened,
        Self::TicketDeleted,
        Self::VmBooted,
        Self::VmRenamed,
        Self::VmEnded,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyCreated => "key.created",
            Self::KeyRevoked => "key.revoked",
            Self::KeyRotated => "key.rotated",
            Self::TicketCreated => "ticket.created",
            Self::TicketUpdated => "ticket.updated",
            Self::TicketReady => "ticket.ready",
            Self::TicketClaimed => "ticket.claimed",
            Self::TicketBlocked => "ticket.blocked",
            Self::TicketReleased => "ticket.released",
            Self::TicketLeaseExpired => "ticket.lease_expired",
            Self::TicketCompleted => "ticket.completed",
            Self::TicketFailed => "ticket.failed",
            Self::TicketReopened => "ticket.reopened",
            Self::TicketDeleted => "ticket.deleted",
            Self::VmBooted => "vm.booted",
            Self::VmRenamed => "vm.renamed",
            Self::VmEnded => "vm.ended",
        }
    }

    /// Whether a word names it: its own, or that of its family, such as `vm.*`.
    pub fn is_named(self, word: &str) -> bool {
        match word.strip_suffix(".*") {
            Some(family) => self.as_str().split_once('.').is_some_and(|(own, _)| own == family),
            None => self.as_str() == word,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its place in the order of commits; grows, never comes again within an epoch.
    pub sequence: u64,
    /// The life of the store that it belongs to: sequences of two epochs cannot be compared.
    pub epoch: String,
    /// The account that may see it.
    pub account: AccountId,
    /// What happened.
    pub kind: EventKind,
    /// To what; the kind says which fields.
    pub body: Map<String, Value>,
    /// When.
    pub at: Timestamp,
    /// The request that caused it.
    pub request_id: Option<String>,
    /// The ticket that it is about, where it is about one.
    pub ticket: Option<TicketId>,
}

impl Event {
    /// What it is called outside: epoch and sequence.
    pub fn id(&self) -> EventId {
        EventId { epoch: self.epoch.clone(), sequence: self.sequence }
    }

    /// As it is told outside.
    pub fn told(&self) -> skep_api::events::Event {
        skep_api::events::Event {
            id: self.id().to_string(),
            kind: self.kind.as_str().to_owned(),
            at: self.at,
            request_id: self.request_id.clone(),
            body: self.body.clone(),
        }
    }
}

/// Whose events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsOf {
    /// Of all accounts: never for a caller.
    All,
    /// Of an account.
    Account(AccountId),
    /// Of a ticket of that account.
    Ticket(AccountId, TicketId),
}

/// Reads a page of events, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadEvents {
    /// Whose.
    pub of: EventsOf,
    /// Which sorts.
    pub kinds: Vec<EventKind>,
    /// From behind this sequence on; 0 is before the first.
    pub after: u64,
    /// Events that are looked at, of other sorts too: so much a page costs at the most.
    pub limit: u32,
    /// Where their bodies take more than this, in bytes, the page ends; one event is always on it.
    pub bytes: usize,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// In order.
    pub events: Vec<Event>,
    /// Everything up to here was looked at: where the next page begins.
    pub upto: u64,
    /// Whether there may be more behind it.
    pub more: bool,
    /// What was kept when the page was read.
    pub span: EventSpan,
}

/// Which events there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSpan {
    /// The life of the store, as a restore of a backup begins a new one.
    pub epoch: String,
    /// The last sequence before it began.
    pub began: u64,
    /// The oldest that is kept; the one to come where none is.
    pub oldest: u64,
    /// The newest that was written, kept or not.
    pub newest: u64,
}

/// A ticket's record, and the events that it contains: all of this span.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketNow {
    /// The record.
    pub ticket: Ticket,
    /// What was written until then.
    pub span: EventSpan,
}
