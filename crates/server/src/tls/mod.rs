//! TLS: the certificate that is shown now, and how it is exchanged while serving.

mod certificates;
mod pem;
pub mod self_signed;

pub use certificates::Certificates;
pub(crate) use certificates::warn_of_expiry;
pub use pem::{Error, Pem};
