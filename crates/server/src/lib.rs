//! The HTTP service: who calls, what it may, and what the answer looks like. What happens is decided further in.

mod address;
mod app;
mod auth;
mod body;
pub mod confine;
mod connection;
mod entrance;
mod error;
mod extract;
mod key_uses;
mod limits;
mod linger;
mod listener;
mod openapi;
mod origin;
mod pieces;
mod random;
mod request;
mod routes;
mod run;
pub mod tls;
mod vms;

pub use app::{Parts, router};
pub use error::SKEP_ERROR;
pub use key_uses::KeyUses;
pub use limits::{Limits, Rate, WrongRate};
pub use origin::TrustedProxies;
pub use request::{API_VERSION, REQUEST_ID, SKEP_VERSION};
pub use routes::boot::BootDefaults;
pub use run::{Error, ServerOrder, check_address, run};
