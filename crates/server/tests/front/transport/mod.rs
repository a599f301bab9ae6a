//! Connections as hostile and careless callers make them.

mod answers;
mod bodies;
mod framing;
mod http2;
mod limits;
mod proxies;
mod slow;
pub(crate) mod tls;
mod unread;
pub(crate) mod wire;
