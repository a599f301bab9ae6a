//! A real server, and the proof that it leaves nothing.

mod remains;
mod server;
#[cfg(feature = "root")]
mod vms;

pub(crate) use server::{Answer, Skep, send};
#[cfg(feature = "root")]
pub(crate) use server::{binary, serve};
#[cfg(feature = "root")]
pub(crate) use vms::{connect_in_namespace, eventually};
