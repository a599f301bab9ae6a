//! What the server does for tickets beside answering: it keeps their times, wakes those who wait for work, and lets a
//! request have its effect once.

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
