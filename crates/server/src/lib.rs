//! The HTTP service: who calls, what it may, and what the answer looks like. What happens is decided further in.

mod accept;
mod address;
mod app;
mod audit;
mod auth;
mod body;
mod chores;
pub mod confine;
mod csv_text;
mod error;
mod extract;
mod key_uses;
mod key_watch;
mod limits;
mod linger;
mod listener;
mod openapi;
mod pieces;
mod random;
mod request;
mod retention;
mod routes;
mod run;
mod session;
mod trail;
mod vms;
mod workspaces;

pub use app::{Parts, router};
pub use audit::AuditQueue;
pub use error::SKEP_ERROR;
pub use key_uses::KeyUses;
pub use request::{API_VERSION, REQUEST_ID, SKEP_VERSION};
pub use routes::boot::BootDefaults;
pub use run::{Error, ServerOrder, check_address, run};
pub use session::Encrypted;
