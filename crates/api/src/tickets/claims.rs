//! Claims and leases of tickets, and the reasons why a ticket cannot be claimed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Blocker, Priority, Ticket, TicketStatus};
use crate::{Label, TicketId};

/// One priority, or a list of priorities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Priorities {
    /// A single priority.
    One(Priority),
    /// Any of these priorities.
    Any(Vec<Priority>),
}

/// A request for work. Body of `POST /api/tickets/claim`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimTickets {
    /// The holder that claims, 1 to 200 characters; default: the name of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "agent-7"))]
    pub assignee: Option<String>,
    /// The maximum number of tickets to claim: 1 to 100; default 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100, example = 1))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub count: Option<u32>,
    /// The duration of the lease without a heartbeat, in milliseconds: 5 s to 24 h; default 1 h.
    #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub lease_ms: Option<u64>,
    /// Restricts the claim to tickets of this priority or one of these; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priorities>,
    /// Restricts the claim to tickets that have all of these labels, at most 32; default: all tickets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32))]
    pub labels: Option<Vec<Label>>,
    /// How long to wait for a ticket if none can be claimed, in milliseconds: at most 60,000; default 0.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60_000, example = 0))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub wait_ms: Option<u64>,
}

/// The claimed tickets. Answer of `POST /api/tickets/claim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimedTickets {
    /// The claimed tickets, highest priority first; empty if none could be claimed.
    pub tickets: Vec<Ticket>,
}

/// Renews the lease of a ticket. Body of `POST /api/tickets/{id}/heartbeat`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// The attempt of the caller. The request is rejected if it is not the current one.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, example = 1))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub attempt: Option<u32>,
    /// The holder, as given with the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "agent-7"))]
    pub assignee: Option<String>,
    /// The duration of the lease from now, in milliseconds: 5 s to 24 h; unchanged unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    pub lease_ms: Option<u64>,
    /// The progress of the work, at most 2,000 characters; unchanged unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000, example = "120 of 300 files"))]
    pub progress: Option<String>,
}

/// The renewed lease. Answer of `POST /api/tickets/{id}/heartbeat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Beat {
    /// The current attempt.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// When the renewed lease expires.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub lease_expires_at: Timestamp,
}

/// A reason why a ticket cannot be claimed at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reason {
    /// A stable code: `blocked`, `blocked_by_failure`, `waiting`, `held`, `completed` or `failed`.
    #[cfg_attr(feature = "openapi", schema(example = "blocked"))]
    pub code: String,
    /// An explanation for people.
    #[cfg_attr(feature = "openapi", schema(example = "blocked by 1 unfinished ticket"))]
    pub message: String,
    /// The tickets that the reason refers to, at most ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tickets: Option<Vec<Blocker>>,
    /// The time until which the reason holds; null if it is not bound to a time.
    #[serde(default, with = "crate::time::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Timestamp>,
    /// The event or action that would resolve the reason.
    #[cfg_attr(feature = "openapi", schema(example = "its completion"))]
    pub who: String,
}

/// The reasons why a ticket cannot be claimed. Answer of `GET /api/tickets/{id}/why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    /// The id of the ticket.
    pub id: TicketId,
    /// The status of the ticket.
    pub status: TicketStatus,
    /// Whether the ticket can be claimed now.
    pub ready: bool,
    /// All reasons why the ticket cannot be claimed; empty if it can be claimed now.
    pub reasons: Vec<Reason>,
}
