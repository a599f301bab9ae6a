//! Background work for tickets: their timers, the wake-up of claims that wait, the end of VMs whose attempt ended, and
//! idempotent requests.

mod deadlines;
mod idempotency;
mod timers;
mod vms_without_attempt;
mod waiters;

pub(crate) use self::{
    idempotency::{IDEMPOTENCY_KEY_DESCRIPTION, InProgressGuard, InProgressRequests, idempotency_key},
    timers::run_timers,
    vms_without_attempt::end_vms_without_attempt,
    waiters::Waiters,
};
