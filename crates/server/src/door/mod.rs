//! What a request passes between the listening socket and the router, except authentication: connections, TLS, framing,
//! limits, the origin of the request.
//!
//! Nothing here knows the routes or the background tasks.

pub(crate) mod address;
pub(crate) mod admission;
pub(crate) mod connection;
pub(crate) mod limits;
pub(crate) mod origin;
pub mod tls;
pub(crate) mod vm_listener;
