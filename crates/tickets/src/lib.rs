//! The rules of tickets: which command is permitted in which state, and its effect. No I/O, no async, no clock: `now`
//! is an argument.
//!
//! ```text
//!             claim                 finish
//!  pending ─────────▶ in_progress ─────────▶ completed (final)
//!   ▲  ▲ ▲              │    │
//!   │  │ └── release ───┘    └── finish, or max_attempts ───▶ failed
//!   │  └──── lease, VM or time limit (counted)                 │
//!   └─────────────────────── retry ────────────────────────────┘
//! ```
//! An *attempt* is one claim. Attempt numbers only increase, and a caller with an older attempt is refused, which
//! gives safety. Liveness comes from the lease: it ends an attempt whose holder sends no heartbeats.

mod backoff;
mod batch;
mod command;
mod cycle;
mod error;
mod fields;
mod finish;
pub mod limits;
mod request;
mod ticket;
mod transition;
mod why;

pub use batch::{Dependency, check_batch};
pub use command::{
    Assignee, Claim, ClaimReady, Command, EndCause, EndedAttempt, FinishRequest, Release, Resolution,
};
pub use cycle::find_cycle;
pub use error::Error;
pub use fields::{Edits, NewTicket, check_edits, new_ticket, parse_edits};
pub use request::{check_heartbeat, deduplicated_labels, parse_claim, parse_transition};
pub use ticket::{Blockers, Finish, Holder, LapsedHolder, Lease, State, Ticket, Wait};
pub use transition::{Decision, Step, StepKind, decide, ready_step, rescheduled};
pub use why::why;
