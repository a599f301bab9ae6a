//! Events, in the order of commits. An event is written in the same transaction as the change that it describes.

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::{Map, Value};
use skep_api::{AccountId, TicketId, events::EventId, tickets::Ticket};
use tokio::sync::watch;

use crate::{EventKind, Result};

/// The methods of a [`Store`](crate::Store) for events.
#[async_trait]
#[warn(missing_docs)]
pub trait EventStore: Send + Sync {
    /// Returns at most `limit` events of all accounts after this sequence, in order; 0 includes the first event.
    async fn events_after(&self, sequence: u64, limit: u32) -> Result<Vec<Event>>;
    /// Returns a page of events.
    async fn read_events(&self, query: ReadEvents) -> Result<EventPage>;
    /// Returns the position just before the first event at or after this time, or the newest position if there is none. No event of
    /// the account is deleted after it. The cost hardly depends on the number of events. If the clock was set back, the position may be that of a later
    /// such event.
    async fn event_position(&self, account: AccountId, since: Timestamp) -> Result<EventId>;
    /// Returns the range of stored events.
    async fn event_span(&self, scope: EventScope) -> Result<EventSpan>;
    /// Returns a ticket of this account and the range of events that its state reflects; fails with `UnknownTicket`.
    async fn ticket_with_span(
        &self,
        account: AccountId,
        id: TicketId,
        at: Timestamp,
    ) -> Result<TicketWithSpan>;
    /// A counter that changes after each durable commit of this store that may have written events. Commits by other
    /// processes are not included.
    fn commits(&self) -> watch::Receiver<u64>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Position in the order of commits. Increases, and is never reused within an epoch.
    pub sequence: u64,
    /// Restoring a backup starts a new epoch. Sequences of different epochs cannot be compared.
    pub epoch: String,
    /// The account that may see it.
    pub account: AccountId,
    pub kind: EventKind,
    /// Its fields depend on the kind.
    pub body: Map<String, Value>,
    pub at: Timestamp,
    pub request_id: Option<String>,
    /// The ticket that the event is about, if any.
    pub ticket: Option<TicketId>,
}

impl Event {
    /// Public id: epoch and sequence.
    pub fn id(&self) -> EventId {
        EventId { epoch: self.epoch.clone(), sequence: self.sequence }
    }

    /// Converts to the representation of the API.
    pub fn to_api(&self) -> skep_api::events::Event {
        skep_api::events::Event {
            id: self.id().to_string(),
            kind: self.kind.as_str().to_owned(),
            at: self.at,
            request_id: self.request_id.clone(),
            body: self.body.clone(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventScope {
    /// Events of all accounts, for internal use only.
    All,
    Account(AccountId),
    /// Events about one ticket of the account.
    Ticket(AccountId, TicketId),
}

/// Reads a page of events, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadEvents {
    pub scope: EventScope,
    pub kinds: Vec<EventKind>,
    /// Only events after this sequence; 0 includes the first.
    pub after: u64,
    /// Maximum number of events to examine, including those of other kinds. This bounds the cost of a page.
    pub limit: u32,
    /// Maximum total size of the bodies, in bytes. A page contains at least one event regardless.
    pub bytes: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// In order of their sequence.
    pub events: Vec<Event>,
    /// Last examined sequence: `after` of the next page.
    pub examined_to: u64,
    /// Whether there may be more events.
    pub more: bool,
    /// Range of stored events of the scope when the page was read.
    pub span: EventSpan,
}

/// Range of stored events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSpan {
    /// Current epoch of the store.
    pub epoch: String,
    /// Last sequence of the previous epoch.
    pub epoch_start: u64,
    /// For one account: the sequence from which on no event of it is deleted. For all: the oldest stored sequence; the next one to be
    /// written if no event is stored.
    pub oldest: u64,
    /// Newest sequence that was written, even if that event has been deleted.
    pub newest: u64,
}

/// A ticket together with the range of events that its state reflects.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketWithSpan {
    pub ticket: Ticket,
    /// Range of events that were committed when the ticket was read.
    pub span: EventSpan,
}
