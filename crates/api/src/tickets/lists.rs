//! Lists of tickets, and their counts.

use serde::{Deserialize, Serialize};

use super::{Ticket, TicketSummary};

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
