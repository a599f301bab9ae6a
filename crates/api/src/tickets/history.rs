//! The events and attempts of a ticket.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AttemptOutcome, Object, Ticket};
use crate::{KeyId, TicketId, VmId};

/// The origin of a change to a ticket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Actor {
    /// The key of the request; null if the server itself made the change.
    pub key: Option<KeyId>,
    /// The holder that the attempt belongs to.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: Option<String>,
    /// The VM that the attempt belongs to.
    pub vm: Option<VmId>,
}

/// A change to a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketEvent {
    /// The event's id: the epoch of the store, and the position in the order of commits.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// The type of the event.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "ticket.claimed"))]
    pub kind: String,
    /// When the change was committed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The id of the ticket; with `ticket.created`, the whole record.
    #[cfg_attr(feature = "openapi", schema(value_type = TicketOrId))]
    pub ticket: Value,
    /// The origin of the change.
    pub actor: Actor,
    /// The changed fields, each with its old and its new value.
    #[cfg_attr(feature = "openapi", schema(value_type = Object, example = json!({"status": ["pending", "in_progress"]})))]
    pub changes: Object,
    /// The ticket's latest attempt at the time of the event.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// The request that caused the change; null if the server itself made it.
    #[cfg_attr(feature = "openapi", schema(example = "deploy-17.3"))]
    pub request_id: Option<String>,
}

/// The id of a ticket, or its whole record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TicketOrId {
    /// The id.
    Id(TicketId),
    /// The record.
    Ticket(Box<Ticket>),
}

/// An attempt at a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// The number of the attempt, from 1.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// The holder of the ticket.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: String,
    /// The VM that held the ticket.
    pub vm: Option<VmId>,
    /// When the ticket was claimed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub claimed_at: Timestamp,
    /// When the attempt ended; null while it is in progress.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub ended_at: Option<Timestamp>,
    /// How the attempt ended; null while it is in progress.
    pub outcome: Option<AttemptOutcome>,
    /// The result. If the boot command of a VM ended without completing the ticket: its exit code and the end of its
    /// output.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<Object>,
}

/// The history of a ticket. Answer of `GET /api/tickets/{id}/history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketHistory {
    /// The changes, oldest first.
    pub events: Vec<TicketEvent>,
    /// The latest 1,000 attempts, oldest first; only on the first page.
    pub attempts: Vec<Attempt>,
    /// The cursor of the next page of events; null on the last page.
    pub next_cursor: Option<String>,
}
