//! One connection: who may have it, TLS, which HTTP it speaks, and how long it may take for what.

mod accept;
mod exchanges;
mod framing;
mod head;
mod plain_text;
mod steady;
mod track;
mod wire;

pub(crate) use accept::Door;
pub(crate) use track::track;
