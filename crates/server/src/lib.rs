//! The HTTP service: who calls, what it may, and what the answer looks like. What happens is decided further in.

mod address;
mod app;
mod auth;
mod body;
pub mod confine;
mod error;
mod extract;
mod key_uses;
mod linger;
mod listener;
mod metrics;
mod openapi;
mod pieces;
mod random;
mod request;
mod routes;
mod run;
mod vms;

pub use app::{Parts, router};
pub use error::SKEP_ERROR;
pub use key_uses::KeyUses;
pub use metrics::{Metrics, check_metrics_address};
pub use request::{API_VERSION, REQUEST_ID, SKEP_VERSION};
pub use routes::boot::BootDefaults;
pub use run::{Error, ServerOrder, check_address, run};
