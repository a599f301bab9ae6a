//! The ticket operations over HTTP.

mod claims;
mod dependencies;
mod faults;
mod idempotency;
mod labels;
mod leases;
mod lifecycle;
mod limits;
mod lists;
mod logs;
mod search;
pub(crate) mod vms;

pub(crate) use crate::harness::done;
