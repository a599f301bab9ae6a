//! What the routes of tickets share with the background tasks: the wake-up of claims that wait, and idempotent requests.

mod idempotency;
mod waiters;

pub(crate) use self::{
    idempotency::{IDEMPOTENCY_KEY_DESCRIPTION, InProgressGuard, InProgressRequests, idempotency_key},
    waiters::Waiters,
};
