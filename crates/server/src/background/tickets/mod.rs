//! The timers of tickets, and the end of VMs whose attempt ended.

mod deadlines;
mod timers;
mod vms_without_attempt;

pub(super) use self::{timers::run_timers, vms_without_attempt::end_vms_without_attempt};
