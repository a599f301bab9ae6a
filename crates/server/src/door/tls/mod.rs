//! TLS certificates: parsing, replacement while serving, and a self-signed one.

mod acceptors;
mod certificates;
mod pem;
pub mod self_signed;

pub(crate) use acceptors::{HTTP2, TlsAcceptors};
pub use certificates::Certificates;
pub(crate) use certificates::warn_of_expiry;
pub use pem::{Error, Pem};
