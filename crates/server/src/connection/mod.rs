//! One connection: who may have it, TLS, which HTTP it speaks, and how long it may take for what.

mod accept;
mod exchanges;
mod framing;
mod head;
mod linger;
mod plain_text;
mod steady;
mod track;
mod unread;
mod wire;

pub(crate) use accept::Door;
pub(crate) use track::track;
