//! The record of a ticket, and its summary, which lacks the fields of any size. Each field is listed once.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Blocker, Object, Priority, TicketStatus};
use crate::{Label, TicketId, VmId};

/// Defines both structs, whose fields have the same order. The fields in `@record_only` are only those of the record.
macro_rules! ticket_records {
    ($(
        $(#[$attribute:meta])* $field:ident: $type:ty,
        $(@record_only { $(#[$only_attribute:meta])* $only_field:ident: $only_type:ty, })?
    )+) => {
        /// The record of a ticket.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct Ticket {
            $(
                $(#[$attribute])* pub $field: $type,
                $($(#[$only_attribute])* pub $only_field: $only_type,)?
            )+
        }

        /// The fields of a ticket but those of any size: `description`, `result` and `metadata`.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct TicketSummary {
            $($(#[$attribute])* pub $field: $type,)+
        }

        impl From<Ticket> for TicketSummary {
            fn from(ticket: Ticket) -> Self {
                Self { $($field: ticket.$field,)+ }
            }
        }

        impl TicketSummary {
            /// The record that has these fields, and those that a summary lacks.
            pub fn into_record(self, $($($only_field: $only_type,)?)+) -> Ticket {
                Ticket { $($field: self.$field, $($only_field,)?)+ }
            }
        }
    };
}

ticket_records! {
    /// The unique id. Ids sort in order of creation.
    id: TicketId,
    /// The title, 1 to 500 characters.
    #[cfg_attr(feature = "openapi", schema(example = "Port the parser"))]
    title: String,
    @record_only {
        /// The work to do.
        description: Option<String>,
    }
    /// The priority; tickets of a higher priority are claimed first.
    priority: Priority,
    /// The tickets that must be completed before this one can be claimed.
    dependencies: Vec<TicketId>,
    /// The status of the ticket.
    status: TicketStatus,
    /// The holder of the ticket, or the holder that finished it.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    assignee: Option<String>,
    @record_only {
        /// The result that the holder gave when it finished the ticket.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        result: Option<Object>,
    }
    /// Whether the ticket can be claimed now: it is pending, all dependencies are completed, and `not_before` has
    /// passed.
    ready: bool,
    /// The dependencies that are not completed.
    blocked_by: Vec<Blocker>,
    /// The number of the latest attempt; 0 before the first claim. It never decreases.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    attempt: u32,
    /// How many attempts may end without completion or release (for example by lease expiry, end of the VM or
    /// `max_runtime_ms`) before the ticket fails.
    #[cfg_attr(feature = "openapi", schema(example = 5))]
    max_attempts: u32,
    /// When the lease of the current holder expires.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    lease_expires_at: Option<Timestamp>,
    /// The maximum duration of one attempt, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 86_400_000))]
    max_runtime_ms: u64,
    /// The earliest time at which the ticket can be claimed, as requested or because of a back-off.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    not_before: Option<Timestamp>,
    /// The progress reported with the latest heartbeat.
    progress: Option<String>,
    /// The VM that holds the ticket.
    vm: Option<VmId>,
    /// The labels by which lists and claims select tickets, in the order given.
    // Answers stored for `Idempotency-Key` before labels were introduced have none.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    labels: Vec<Label>,
    @record_only {
        /// Additional data of callers, not interpreted by the server.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        metadata: Option<Object>,
    }
    /// The version, incremented by each change. The `ETag` header holds the same number in quotes.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    version: u64,
    /// When the ticket was created.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    created_at: Timestamp,
    /// When the ticket last changed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    updated_at: Timestamp,
    /// When the latest attempt began.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    started_at: Option<Timestamp>,
    /// When the ticket was completed or failed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    finished_at: Option<Timestamp>,
}
