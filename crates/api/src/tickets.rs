//! Tickets: records, and the requests and answers that create, claim, change and finish them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    KeyId, Label, Patch, TicketId, VmId,
    scope::{UnknownWord, words},
};

pub use crate::ticket_lists::{TicketList, TicketSummary, TicketSummaryList, TicketTotals};

/// A JSON object.
pub type Object = Map<String, Value>;

/// The file in a VM with the ticket that the VM was booted for.
pub const TICKET_FILE: &str = "/run/skep/ticket.json";
/// The file in a VM to which the boot command may write the result of its ticket.
pub const RESULT_FILE: &str = "/run/skep/result.json";

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

/// The record of a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ticket {
    /// The unique id. Ids sort in order of creation.
    pub id: TicketId,
    /// The title, 1 to 500 characters.
    #[cfg_attr(feature = "openapi", schema(example = "Port the parser"))]
    pub title: String,
    /// The work to do.
    pub description: Option<String>,
    /// The priority; tickets of a higher priority are claimed first.
    pub priority: Priority,
    /// The tickets that must be completed before this one can be claimed.
    pub dependencies: Vec<TicketId>,
    /// The status of the ticket.
    pub status: TicketStatus,
    /// The holder of the ticket, or the holder that finished it.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: Option<String>,
    /// The result that the holder gave when it finished the ticket.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<Object>,
    /// Whether the ticket can be claimed now: it is pending, all dependencies are completed, and `not_before` has
    /// passed.
    pub ready: bool,
    /// The dependencies that are not completed.
    pub blocked_by: Vec<Blocker>,
    /// The number of the latest attempt; 0 before the first claim. It never decreases.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// How many attempts may end without completion or release (for example by lease expiry, end of the VM or
    /// `max_runtime_ms`) before the ticket fails.
    #[cfg_attr(feature = "openapi", schema(example = 5))]
    pub max_attempts: u32,
    /// When the lease of the current holder expires.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub lease_expires_at: Option<Timestamp>,
    /// The maximum duration of one attempt, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 86_400_000))]
    pub max_runtime_ms: u64,
    /// The earliest time at which the ticket can be claimed, as requested or because of a back-off.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub not_before: Option<Timestamp>,
    /// The progress reported with the latest heartbeat.
    pub progress: Option<String>,
    /// The VM that holds the ticket.
    pub vm: Option<VmId>,
    /// The labels by which lists and claims select tickets, in the order given.
    // Answers stored for `Idempotency-Key` before labels were introduced have none.
    #[serde(default)]
    pub labels: Vec<Label>,
    /// Additional data of callers, not interpreted by the server.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Object>,
    /// The version, incremented by each change. The `ETag` header holds the same number in quotes.
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

/// Defines the requests that set fields of a ticket: their own fields, followed by the shared ones, which are listed once.
/// A shared field has a form in creations and one in changes. (Serde's `flatten` would accept unknown fields.)
macro_rules! ticket_requests {
    (
        shared {
            $(
                $(#[$in_creation:meta])*
                $field:ident: $created:ty,
                $(#[$in_change:meta])*
                change: $changed:ty;
            )+
        }
        $(#[$of_create:meta])* create $create:ident { $($own_of_create:tt)* }
        $(#[$of_batch:meta])* create $batch:ident { $($own_of_batch:tt)* }
        $(#[$of_change:meta])* change $change:ident { $($own_of_change:tt)* }
    ) => {
        $(#[$of_create])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $create {
            $($own_of_create)*
            $($(#[$in_creation])* pub $field: $created,)+
        }

        $(#[$of_batch])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $batch {
            $($own_of_batch)*
            $($(#[$in_creation])* pub $field: $created,)+
        }

        $(#[$of_change])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $change {
            $($own_of_change)*
            $($(#[$in_change])* pub $field: $changed,)+
        }

        impl $batch {
            /// The ticket without what refers to the batch: its name and its dependencies.
            pub fn into_creation(self) -> $create {
                $create { title: self.title, dependencies: None, $($field: self.$field,)+ }
            }
        }
    };
}

ticket_requests! {
    shared {
        /// The work to do, at most 64 KiB.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(max_length = 65536))]
        description: Option<String>,
        /// The new description, at most 64 KiB; null removes it.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 65536))]
        change: Patch<String>;
        /// The priority; default `medium`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<Priority>,
        /// The new priority.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        #[cfg_attr(feature = "openapi", schema(value_type = Priority))]
        change: Option<Priority>;
        /// At most 32 labels by which lists and claims select tickets. Duplicates are ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(max_items = 32))]
        labels: Option<Vec<Label>>,
        /// Replaces all labels: at most 32. Possible at any time, also for a completed ticket.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Label>, max_items = 32))]
        change: Option<Vec<Label>>;
        /// Additional data, stored unchanged; at most 64 KiB as JSON.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        metadata: Option<Object>,
        /// Replaces all metadata: at most 64 KiB as JSON; null removes it.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        change: Patch<Object>;
        /// How many attempts may end without completion or release before the ticket fails; default 5.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::optional")]
        max_attempts: Option<u32>,
        /// How many attempts may end without completion or release before the ticket fails.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        change: Option<u32>;
        /// The maximum duration of one attempt, in milliseconds: 5 s to 30 days; default 24 h.
        #[cfg_attr(
            feature = "openapi",
            schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
        )]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::optional")]
        max_runtime_ms: Option<u64>,
        /// The maximum duration of one attempt, in milliseconds: 5 s to 30 days.
        #[cfg_attr(
            feature = "openapi",
            schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
        )]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        change: Option<u64>;
        /// The earliest time at which the ticket can be claimed.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
        /// The earliest time at which the ticket can be claimed; null removes the restriction.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
        change: Patch<Timestamp>;
    }

    /// A ticket to create. Body of `POST /api/tickets`.
    create CreateTicket {
        /// The title, 1 to 500 characters.
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Port the parser"))]
        pub title: String,
        /// At most 1,000 tickets that must be completed before this one can be claimed. Duplicates are ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dependencies: Option<Vec<TicketId>>,
    }

    /// A ticket of `POST /api/tickets/batch`: the fields of `POST /api/tickets`, and a name for dependencies within the
    /// batch.
    create BatchTicket {
        /// A name within this batch, 1 to 100 characters, to which dependencies of the batch refer as `ref:NAME`.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100, example = "plan"))]
        pub reference: Option<String>,
        /// The title, 1 to 500 characters.
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Plan the port"))]
        pub title: String,
        /// Tickets that must be completed before this one can be claimed: `ref:NAME` of a ticket at any position in this
        /// batch, or the id of an existing ticket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(example = json!([])))]
        pub dependencies: Option<Vec<String>>,
    }

    /// Changes to a ticket. Body of `PATCH /api/tickets/:id`. Absent fields stay unchanged.
    change ChangeTicket {
        /// The new status: `in_progress` claims the ticket, `completed` and `failed` finish it, `pending` releases or
        /// retries it.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        pub status: Option<TicketStatus>,
        /// The holder that claims or holds the ticket; default: the name of the key. Without `status`, a name claims the
        /// ticket and null releases it.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 200, example = "agent-7"))]
        pub assignee: Patch<String>,
        /// The result, with `completed` or `failed`: an object of at most 1 MiB as JSON.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        pub result: Patch<Object>,
        /// The attempt of the caller. The request is rejected if it is not the current one.
        #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, example = 1))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        pub attempt: Option<u32>,
        /// The duration of the lease without a heartbeat, in milliseconds: 5 s to 24 h; default 1 h.
        #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        pub lease_ms: Option<u64>,
        /// With `pending`: how long the ticket cannot be claimed, in milliseconds; at most 30 days.
        #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2_592_000_000_u64, example = 60_000))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        pub retry_after_ms: Option<u64>,
        /// The new title, 1 to 500 characters.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Port the parser"))]
        pub title: Option<String>,
        /// Replaces all dependencies: at most 1,000. Only while the ticket is pending.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        pub dependencies: Option<Vec<TicketId>>,
    }
}

/// Tickets to create together. Body of `POST /api/tickets/batch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateTickets {
    /// 1 to 1,000 tickets. Either all of them are created, or none.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    pub tickets: Vec<BatchTicket>,
}

/// The created tickets. Answer of `POST /api/tickets/batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedTickets {
    /// The tickets, in the order of the request.
    pub tickets: Vec<Ticket>,
    /// The id of each ticket that had a `ref`, by that name.
    pub refs: BTreeMap<String, TicketId>,
}

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

/// Renews the lease of a ticket. Body of `POST /api/tickets/:id/heartbeat`.
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

/// The renewed lease. Answer of `POST /api/tickets/:id/heartbeat`.
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

/// The answer of `DELETE /api/tickets/:id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedTicket {
    /// The id of the deleted ticket.
    pub id: TicketId,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub deleted: bool,
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

/// The reasons why a ticket cannot be claimed. Answer of `GET /api/tickets/:id/why`.
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

/// The history of a ticket. Answer of `GET /api/tickets/:id/history`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_null_and_a_value_are_three_things() {
        let read = |text: &str| serde_json::from_str::<ChangeTicket>(text);
        assert_eq!(read("{}").unwrap(), ChangeTicket::default());
        assert_eq!(read(r#"{"assignee": null}"#).unwrap().assignee, Patch::Null);
        assert_eq!(read(r#"{"assignee": "a"}"#).unwrap().assignee, Patch::Value("a".to_owned()));
        assert_eq!(read(r#"{"attempt": 2.0}"#).unwrap().attempt, Some(2));
        for wrong in [
            r#"{"status": null}"#,
            r#"{"status": "done"}"#,
            r#"{"dependencies": null}"#,
            r#"{"result": []}"#,
            r#"{"attempt": -1}"#,
            r#"{"id": "x"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let change = ChangeTicket { assignee: Patch::Null, ..ChangeTicket::default() };
        assert_eq!(serde_json::to_string(&change).unwrap(), r#"{"assignee":null}"#);
    }
}
