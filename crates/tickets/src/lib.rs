//! Rules of tickets: who may do what to a ticket, and what comes of it. No I/O, no async, no clock: `now` is an argument.
//!
//! ```text
//!             claim                 finish
//!  pending ─────────▶ in_progress ─────────▶ completed   never again
//!   ▲  ▲ ▲              │    │
//!   │  │ └── release ───┘    └── finish, or too many ends ──▶ failed
//!   │  └──── lease, VM or runtime ends (counted)               │
//!   └─────────────────────── retry ────────────────────────────┘
//! ```
//! An *attempt* is one claim: its number only grows, and whoever comes with an older one is refused. That is the safety; the
//! lease, which ends an attempt whose holder is silent, is the liveness.

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
