//! The audit log: every write and every refused request adds an entry.
//!
//! ```text
//! request --> layer: begin --> the rest of the service --> layer: finish --> queue --> a batch --> the store
//!                 (the caller disconnects: dropped) --------------------------^
//! ```

mod actions;
mod layer;
mod queue;

pub(crate) use actions::Actions;
pub(crate) use layer::{AuditState, audit_request};
pub use queue::AuditQueue;
