//! The audit: every write and every refusal leaves an entry.
//!
//! ```text
//! request --> note: begin --> the rest of the service --> note: finish --> queue --> a batch --> the store
//!                 (the caller goes away: dropped) ---------------------------^
//! ```

mod actions;
mod note;
mod queue;

pub(crate) use actions::Actions;
pub(crate) use note::{AuditDesk, note};
pub use queue::AuditQueue;
