//! Lists of tickets, summaries of tickets, and their counts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    Label, TicketId, VmId,
    tickets::{Blocker, Priority, Ticket, TicketStatus},
};

/// The fields of a ticket but those of any size: `description`, `result` and `metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketSummary {
    /// The unique id. Ids sort in order of creation.
    pub id: TicketId,
    /// The title, 1 to 500 characters.
    #[cfg_attr(feature = "openapi", schema(example = "Port the parser"))]
    pub title: String,
    /// The priority; tickets of a higher priority are claimed first.
    pub priority: Priority,
    /// The tickets that must be completed before this one can be claimed.
    pub dependencies: Vec<TicketId>,
    /// The status of the ticket.
    pub status: TicketStatus,
    /// The holder of the ticket, or the holder that finished it.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: Option<String>,
    /// Whether the ticket can be claimed now.
    pub ready: bool,
    /// The dependencies that are not completed.
    pub blocked_by: Vec<Blocker>,
    /// The number of the latest attempt; 0 before the first claim.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// How many attempts may end without completion or release before the ticket fails.
    #[cfg_attr(feature = "openapi", schema(example = 5))]
    pub max_attempts: u32,
    /// When the lease of the current holder expires.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub lease_expires_at: Option<Timestamp>,
    /// The maximum duration of one attempt, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 86_400_000))]
    pub max_runtime_ms: u64,
    /// The earliest time at which the ticket can be claimed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub not_before: Option<Timestamp>,
    /// The progress reported with the latest heartbeat.
    pub progress: Option<String>,
    /// The VM that holds the ticket.
    pub vm: Option<VmId>,
    /// The labels by which lists and claims select tickets, in the order given.
    pub labels: Vec<Label>,
    /// The version, incremented by each change.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub version: u64,
    /// When the ticket was created.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When the ticket last changed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub updated_at: Timestamp,
    /// When the latest attempt began.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub started_at: Option<Timestamp>,
    /// When the ticket was completed or failed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub finished_at: Option<Timestamp>,
}

/// A page of tickets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketList {
    /// The tickets, in the requested order.
    pub tickets: Vec<Ticket>,
    /// Only with `related_to`: whether more than 1,000 tickets are connected. The list then has the nearest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub truncated: Option<bool>,
    /// The cursor of the next page; null on the last page. It is valid only with the same filter.
    pub next_cursor: Option<String>,
}

/// A page of tickets with `view=summary`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketSummaryList {
    /// The tickets, in the requested order.
    pub tickets: Vec<TicketSummary>,
    /// Only with `related_to`: whether more than 1,000 tickets are connected. The list then has the nearest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub truncated: Option<bool>,
    /// The cursor of the next page; null on the last page. It is valid only with the same filter.
    pub next_cursor: Option<String>,
}

/// How many tickets an account has, by status. Answer of `GET /api/tickets/summary`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketTotals {
    /// Tickets that nothing holds: `ready`, `blocked` and `waiting` together.
    #[cfg_attr(feature = "openapi", schema(example = 12))]
    pub pending: u64,
    /// Tickets that a holder works on.
    #[cfg_attr(feature = "openapi", schema(example = 3))]
    pub in_progress: u64,
    /// Completed tickets.
    #[cfg_attr(feature = "openapi", schema(example = 40))]
    pub completed: u64,
    /// Failed tickets.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub failed: u64,
    /// Pending tickets that can be claimed now.
    #[cfg_attr(feature = "openapi", schema(example = 4))]
    pub ready: u64,
    /// Pending tickets with a dependency that is not completed.
    #[cfg_attr(feature = "openapi", schema(example = 7))]
    pub blocked: u64,
    /// Pending tickets that wait for `not_before` or a back-off alone.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub waiting: u64,
}

impl From<Ticket> for TicketSummary {
    fn from(ticket: Ticket) -> Self {
        Self {
            id: ticket.id,
            title: ticket.title,
            priority: ticket.priority,
            dependencies: ticket.dependencies,
            status: ticket.status,
            assignee: ticket.assignee,
            ready: ticket.ready,
            blocked_by: ticket.blocked_by,
            attempt: ticket.attempt,
            max_attempts: ticket.max_attempts,
            lease_expires_at: ticket.lease_expires_at,
            max_runtime_ms: ticket.max_runtime_ms,
            not_before: ticket.not_before,
            progress: ticket.progress,
            vm: ticket.vm,
            labels: ticket.labels,
            version: ticket.version,
            created_at: ticket.created_at,
            updated_at: ticket.updated_at,
            started_at: ticket.started_at,
            finished_at: ticket.finished_at,
        }
    }
}
