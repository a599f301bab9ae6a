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
mod finish;
pub mod limits;
mod request;
mod ticket;
mod transition;
mod why;

pub use batch::{Needed, NewTicket, batch};
pub use command::{Assignee, Beat, Claim, Command, EndCause, EndedAttempt, Finishing, Release, Resolution};
pub use cycle::{cycle_among, find_cycle};
pub use error::Refusal;
pub use request::{
    ClaimOrder, Edits, check_edits, claim_order, edits, heartbeat, labels, new_ticket, transition,
};
pub use ticket::{Blockers, Finish, Holder, Lapsed, Lease, State, Ticket, Wait};
pub use transition::{Decision, Step, StepKind, decide, opening, readied, rescheduled};
pub use why::why;
