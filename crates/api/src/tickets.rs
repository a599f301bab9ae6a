//! Tickets: records, and the requests and answers that create, claim, change and finish them.

mod claims;
mod history;
mod lists;
mod record;
mod requests;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    TicketId,
    scope::{UnknownWord, words},
    swarm::API_URL_VARIABLE,
};

pub use self::{
    claims::{Beat, ClaimTickets, ClaimedTickets, Heartbeat, Priorities, Reason, Why},
    history::{Actor, Attempt, TicketEvent, TicketHistory, TicketOrId},
    lists::{TicketList, TicketSummaryList, TicketTotals},
    record::{Ticket, TicketSummary},
    requests::{BatchTicket, ChangeTicket, CreateTicket, CreateTickets, CreatedTickets, DeletedTicket},
};

/// A JSON object.
pub type Object = Map<String, Value>;

/// The file in a VM with the ticket that the VM was booted for.
pub const TICKET_FILE: &str = "/run/skep/ticket.json";
/// The file in a VM to which the boot command may write the result of its ticket.
pub const RESULT_FILE: &str = "/run/skep/result.json";
/// The variables of commands in a VM that works on a ticket: key, ticket, attempt and API address.
pub const TICKET_VARIABLES: [&str; 4] =
    ["SKEP_API_KEY", "SKEP_TICKET_ID", "SKEP_TICKET_ATTEMPT", API_URL_VARIABLE];
/// The variables with the paths of the ticket's files. `skep ticket work` sets the same ones.
pub const TICKET_FILE_VARIABLES: [(&str, &str); 2] =
    [("SKEP_TICKET_FILE", TICKET_FILE), ("SKEP_RESULT_FILE", RESULT_FILE)];

words! {
    /// The status of a ticket.
    TicketStatus, "status":
    /// Nothing holds the ticket.
    Pending = "pending",
    /// A holder works on the ticket.
    InProgress = "in_progress",
    /// The ticket is completed, which is final.
    Completed = "completed",
    /// The ticket failed; it can be retried.
    Failed = "failed",
}

words! {
    /// The priority of a ticket, highest first.
    Priority, "priority":
    /// Claimed before all others.
    Critical = "critical",
    /// Claimed before `medium`.
    High = "high",
    /// The default.
    Medium = "medium",
    /// Claimed after all others.
    Low = "low",
}

words! {
    /// How an attempt ended.
    AttemptOutcome, "outcome":
    /// The holder completed the ticket.
    Completed = "completed",
    /// The holder failed the ticket.
    Failed = "failed",
    /// The holder released the ticket. The attempt does not count towards `max_attempts`.
    Released = "released",
    /// The lease expired.
    LeaseExpired = "lease_expired",
    /// The attempt took longer than `max_runtime_ms`.
    MaxRuntime = "max_runtime",
    /// The VM that held the ticket ended.
    VmEnded = "vm_ended",
    /// The boot command of the VM ended, and neither completed nor released the ticket.
    CommandEnded = "command_ended",
}

/// A dependency that is not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Blocker {
    /// The id of the dependency.
    pub id: TicketId,
    /// The status of the dependency; never `completed`.
    pub status: TicketStatus,
}
