//! Connections of hostile and careless clients.

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
