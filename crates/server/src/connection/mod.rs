//! Connections: limits on their number, TLS, the detection of HTTP/2, request framing and timeouts.

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
