//! Connections: limits on their number, TLS, the detection of HTTP/2, request framing and timeouts.

mod acceptor;
mod exchanges;
mod framing;
mod guarded_stream;
mod lingering_close;
mod plain_text;
mod socket;
mod track;
mod unread_body;

pub(crate) use acceptor::ConnectionAcceptor;
pub(crate) use track::track;
