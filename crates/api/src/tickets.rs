//! Tickets: their records, how they are made, claimed, changed and finished.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    KeyId, Label, Patch, TicketId, VmId,
    scope::{UnknownWord, words},
};

/// An object of JSON.
pub type Object = Map<String, Value>;

/// Where the commands of a VM find the ticket that it was booted for.
pub const TICKET_FILE: &str = "/run/skep/ticket.json";
/// Where the command of a boot may write the result of its ticket.
pub const RESULT_FILE: &str = "/run/skep/result.json";

words! {
    /// Where a ticket stands.
    TicketStatus, "status":
    /// Nobody works on it.
    Pending = "pending",
    /// Somebody holds it.
    InProgress = "in_progress",
    /// It is done, and never changes again.
    Completed = "completed",
    /// It was given up; it can be retried.
    Failed = "failed",
}

words! {
    /// How urgent a ticket is. The first of these is claimed first.
    Priority, "priority":
    /// Before all others.
    Critical = "critical",
    /// Before the usual ones.
    High = "high",
    /// The usual one.
    Medium = "medium",
    /// After all others.
    Low = "low",
}

words! {
    /// How an attempt ended.
    AttemptOutcome, "outcome":
    /// Its holder completed the ticket.
    Completed = "completed",
    /// Its holder failed the ticket.
    Failed = "failed",
    /// It was given back. Not counted as a failed attempt.
    Released = "released",
    /// Its lease ran out.
    LeaseExpired = "lease_expired",
    /// It took longer than `max_runtime_ms`.
    MaxRuntime = "max_runtime",
    /// Its VM ended.
    VmEnded = "vm_ended",
    /// The command that its VM was booted with ended, and neither completed the ticket nor gave it back.
    CommandEnded = "command_ended",
}

/// A ticket that another one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Blocker {
    /// Its id.
    pub id: TicketId,
    /// Where it stands: anything but `completed`.
    pub status: TicketStatus,
}

/// A ticket's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ticket {
    /// Its id, never given twice; ids are in the order of their making.
    pub id: TicketId,
    /// What it is about.
    #[cfg_attr(feature = "openapi", schema(example = "Port the parser"))]
    pub title: String,
    /// What is to be done.
    pub description: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
    /// The tickets that must be completed before.
    pub dependencies: Vec<TicketId>,
    /// Where it stands.
    pub status: TicketStatus,
    /// Who holds it, or finished it.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: Option<String>,
    /// What came out of it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<Object>,
    /// Whether it can be claimed now: pending, all dependencies completed, and `not_before` has passed.
    pub ready: bool,
    /// Those of its dependencies that are not completed.
    pub blocked_by: Vec<Blocker>,
    /// The number of its latest attempt; 0 before the first claim. It only grows.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// Attempts that may end by themselves (lease, VM, runtime) before the ticket fails.
    #[cfg_attr(feature = "openapi", schema(example = 5))]
    pub max_attempts: u32,
    /// When the lease of whoever holds it runs out.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub lease_expires_at: Option<Timestamp>,
    /// The longest that one attempt may take, in milliseconds.
    #[cfg_attr(feature = "openapi", schema(example = 86_400_000))]
    pub max_runtime_ms: u64,
    /// When it may be claimed at the earliest: as it was asked for, or a back-off.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub not_before: Option<Timestamp>,
    /// What its holder said with the last beat.
    pub progress: Option<String>,
    /// The VM that holds it.
    pub vm: Option<VmId>,
    /// Words by which lists and claims choose it, in the order that was given.
    // Answers that were kept for `Idempotency-Key` before there were labels have none.
    #[serde(default)]
    pub labels: Vec<Label>,
    /// What callers wrote on it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Object>,
    /// Grows by one with each change; the answer's `ETag` is the same number in quotes.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub version: u64,
    /// When it was made.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When it last changed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub updated_at: Timestamp,
    /// When its latest attempt began.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub started_at: Option<Timestamp>,
    /// When it was completed or failed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub finished_at: Option<Timestamp>,
}

/// The body of `POST /api/tickets`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateTicket {
    /// 1 to 500 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Port the parser"))]
    pub title: String,
    /// At most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 65536))]
    pub description: Option<String>,
    /// `medium` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Tickets that must be completed before: at most 1,000. One that stands twice counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<Vec<TicketId>>,
    /// Words by which lists and claims choose it: at most 32. One that stands twice counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32))]
    pub labels: Option<Vec<Label>>,
    /// Kept with the record; at most 64 KiB as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Object>,
    /// Attempts that may end by themselves before the ticket fails; 5 unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub max_attempts: Option<u32>,
    /// The longest that one attempt may take, in milliseconds: 5 s to 30 days; 24 h unless given.
    #[cfg_attr(
        feature = "openapi",
        schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
    )]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub max_runtime_ms: Option<u64>,
    /// When it may be claimed at the earliest.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
}

/// One ticket of `POST /api/tickets/batch`: as for `POST /api/tickets`, and what others of the batch call it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchTicket {
    /// A name within this batch, 1 to 100 characters; others depend on it as `ref:NAME`.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100, example = "plan"))]
    pub reference: Option<String>,
    /// 1 to 500 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Plan the port"))]
    pub title: String,
    /// At most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 65536))]
    pub description: Option<String>,
    /// `medium` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Tickets that must be completed before: `ref:NAME` of this batch, also of a later one, or the id of one that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = json!([])))]
    pub dependencies: Option<Vec<String>>,
    /// Words by which lists and claims choose it: at most 32. One that stands twice counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32))]
    pub labels: Option<Vec<Label>>,
    /// Kept with the record; at most 64 KiB as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Option<Object>,
    /// Attempts that may end by themselves before the ticket fails; 5 unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub max_attempts: Option<u32>,
    /// The longest that one attempt may take, in milliseconds: 5 s to 30 days; 24 h unless given.
    #[cfg_attr(
        feature = "openapi",
        schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
    )]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub max_runtime_ms: Option<u64>,
    /// When it may be claimed at the earliest.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
}

/// The body of `POST /api/tickets/batch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateTickets {
    /// 1 to 1,000 tickets; all of them are made, or none.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    pub tickets: Vec<BatchTicket>,
}

/// The answer of `POST /api/tickets/batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedTickets {
    /// The records, in the order of the request.
    pub tickets: Vec<Ticket>,
    /// The id of each ticket that had a `ref`.
    pub refs: BTreeMap<String, TicketId>,
}

/// The body of `PATCH /api/tickets/:id`. What is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeTicket {
    /// Where it shall stand: `in_progress` claims it, `completed` and `failed` finish it, `pending` gives it back or retries it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    pub status: Option<TicketStatus>,
    /// Who claims it, or who holds it: the key's name unless given. Alone it claims; null alone gives it back.
    #[serde(default, skip_serializing_if = "Patch::is_absent")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 200, example = "agent-7"))]
    pub assignee: Patch<String>,
    /// What came out of it, with `completed` or `failed`; an object of at most 1 MiB as JSON.
    #[serde(default, skip_serializing_if = "Patch::is_absent")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Patch<Object>,
    /// The attempt that the caller works on; refused where it is not the current one.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, example = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::present")]
    pub attempt: Option<u32>,
    /// How long the claim holds without a beat, in milliseconds: 5 s to 24 h; 1 h unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::present")]
    pub lease_ms: Option<u64>,
    /// With `pending`: how long nobody may claim it, in milliseconds; at most 30 days.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2_592_000_000_u64, example = 60_000))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::present")]
    pub retry_after_ms: Option<u64>,
    /// 1 to 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Port the parser"))]
    pub title: Option<String>,
    /// At most 64 KiB; null takes it away.
    #[serde(default, skip_serializing_if = "Patch::is_absent")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 65536))]
    pub description: Patch<String>,
    /// How urgent it is.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Priority))]
    pub priority: Option<Priority>,
    /// In place of all dependencies: at most 1,000. Only while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    pub dependencies: Option<Vec<TicketId>>,
    /// In place of all labels: at most 32. At any time, also when it is completed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Label>, max_items = 32))]
    pub labels: Option<Vec<Label>>,
    /// In place of all metadata: at most 64 KiB as JSON; null takes it away.
    #[serde(default, skip_serializing_if = "Patch::is_absent")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub metadata: Patch<Object>,
    /// Attempts that may end by themselves before the ticket fails.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::present")]
    pub max_attempts: Option<u32>,
    /// The longest that one attempt may take, in milliseconds: 5 s to 30 days.
    #[cfg_attr(
        feature = "openapi",
        schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
    )]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::present")]
    pub max_runtime_ms: Option<u64>,
    /// When it may be claimed at the earliest; null takes it away.
    #[serde(default, skip_serializing_if = "Patch::is_absent")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub not_before: Patch<Timestamp>,
}

/// One priority, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Priorities {
    /// One.
    One(Priority),
    /// Any of these.
    Any(Vec<Priority>),
}

/// The body of `POST /api/tickets/claim`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimTickets {
    /// Who claims, 1 to 200 characters; the key's name unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "agent-7"))]
    pub assignee: Option<String>,
    /// How many tickets at most: 1 to 100; 1 unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100, example = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub count: Option<u32>,
    /// How long the claim holds without a beat, in milliseconds: 5 s to 24 h; 1 h unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub lease_ms: Option<u64>,
    /// Only tickets of this priority, or of these; all unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priorities>,
    /// Only tickets that have all of these labels, at most 32; all tickets unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32))]
    pub labels: Option<Vec<Label>>,
    /// How long to wait for work where there is none, in milliseconds; 0 unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60_000, example = 0))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub wait_ms: Option<u64>,
}

/// The answer of `POST /api/tickets/claim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimedTickets {
    /// What was claimed, most urgent first; empty where there was nothing.
    pub tickets: Vec<Ticket>,
}

/// The body of `POST /api/tickets/:id/heartbeat`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// The attempt that the caller works on.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, example = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub attempt: Option<u32>,
    /// Who the caller is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "agent-7"))]
    pub assignee: Option<String>,
    /// How long the claim holds from now, in milliseconds: 5 s to 24 h; as long as before unless given.
    #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole::optional")]
    pub lease_ms: Option<u64>,
    /// What the caller does just now, at most 2,000 characters; as before unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000, example = "120 of 300 files"))]
    pub progress: Option<String>,
}

/// The answer of `POST /api/tickets/:id/heartbeat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Beat {
    /// The attempt that goes on.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// When the lease runs out now.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub lease_expires_at: Timestamp,
}

/// A page of tickets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketList {
    /// In the order that was asked for.
    pub tickets: Vec<Ticket>,
    /// Where the next page begins; null at the end. It belongs to the filter that it came with.
    pub next_cursor: Option<String>,
}

/// The answer of `DELETE /api/tickets/:id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedTicket {
    /// Its id.
    pub id: TicketId,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub deleted: bool,
}

/// Why a ticket does not take its next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reason {
    /// A stable name: `blocked`, `blocked_by_failure`, `waiting`, `held`, `completed` or `failed`.
    #[cfg_attr(feature = "openapi", schema(example = "blocked"))]
    pub code: String,
    /// The same in words.
    #[cfg_attr(feature = "openapi", schema(example = "blocked by 1 unfinished ticket"))]
    pub message: String,
    /// The tickets that it is about, at most ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tickets: Option<Vec<Blocker>>,
    /// Until when.
    #[serde(default, with = "crate::time::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Timestamp>,
    /// What would free it.
    #[cfg_attr(feature = "openapi", schema(example = "its completion"))]
    pub who: String,
}

/// The answer of `GET /api/tickets/:id/why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    /// Which ticket.
    pub id: TicketId,
    /// Where it stands.
    pub status: TicketStatus,
    /// Whether it can be claimed now.
    pub ready: bool,
    /// Every rule that keeps it from its next step; none where it can be claimed now.
    pub reasons: Vec<Reason>,
}

/// Who did something to a ticket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Actor {
    /// The key of the call; null where the server itself did it.
    pub key: Option<KeyId>,
    /// Whom the attempt belongs to.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: Option<String>,
    /// The VM that the attempt belongs to.
    pub vm: Option<VmId>,
}

/// What happened to a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketEvent {
    /// Its place in the order of commits, and the epoch of the store that it belongs to.
    #[cfg_attr(feature = "openapi", schema(example = "evt_3f2a9c0d1b4e5f67_42"))]
    pub id: String,
    /// What sort of event it is.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "ticket.claimed"))]
    pub kind: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub at: Timestamp,
    /// The ticket's id; with `ticket.created` its whole record.
    #[cfg_attr(feature = "openapi", schema(value_type = TicketOrId))]
    pub ticket: Value,
    /// Who did it.
    pub actor: Actor,
    /// Each field that changed, with its old and its new value.
    #[cfg_attr(feature = "openapi", schema(value_type = Object, example = json!({"status": ["pending", "in_progress"]})))]
    pub changes: Object,
    /// The ticket's latest attempt then.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// The request that caused it.
    #[cfg_attr(feature = "openapi", schema(example = "deploy-17.3"))]
    pub request_id: Option<String>,
}

/// A ticket's id, or its whole record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TicketOrId {
    /// Its id.
    Id(TicketId),
    /// Its record.
    Ticket(Box<Ticket>),
}

/// One attempt at a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// Its number.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub attempt: u32,
    /// Who held the ticket.
    #[cfg_attr(feature = "openapi", schema(example = "agent-7"))]
    pub assignee: String,
    /// The VM that held it.
    pub vm: Option<VmId>,
    /// When it was claimed.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub claimed_at: Timestamp,
    /// When it ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub ended_at: Option<Timestamp>,
    /// How it ended; null while it goes on.
    pub outcome: Option<AttemptOutcome>,
    /// What came out of it; of a command of a boot that did not complete the ticket: exit code, and the end of its output.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<Object>,
}

/// The answer of `GET /api/tickets/:id/history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TicketHistory {
    /// What happened to it, oldest first.
    pub events: Vec<TicketEvent>,
    /// Its attempts, oldest first; the latest thousand, on the first page.
    pub attempts: Vec<Attempt>,
    /// Where the next page of events begins; null at the end.
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
