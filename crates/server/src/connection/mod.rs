//! One connection: who may have it, TLS, which HTTP it speaks, and how long it may take for what.

mod accept;
mod framing;
mod steady;
mod tempo;

pub(crate) use accept::Door;
pub(crate) use tempo::track;
