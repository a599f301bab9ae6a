//! Background work for tickets: their timers, the wake-up of claims that wait, the end of VMs whose attempt ended, and
//! idempotent requests.

mod clock;
mod once;
mod timers;
mod vms_without_attempt;
mod waiters;

pub(crate) use self::{
    once::{Begun, NAMED_ONCE, UnderWay, named_once},
    timers::keep_time,
    vms_without_attempt::end_vms_without_attempt,
    waiters::Waiters,
};
