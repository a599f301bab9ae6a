//! The test harness: a real server, and checks that it leaves nothing behind.

pub(crate) mod faults;
#[cfg(feature = "root")]
pub(crate) mod images;
mod leftovers;
mod raw_http;
mod server;
#[cfg(feature = "root")]
mod tenants;
#[cfg(feature = "root")]
mod vms;
mod wait;

#[cfg(feature = "root")]
pub(crate) use leftovers::left_by_server as remains_of;
#[cfg(feature = "root")]
pub(crate) use leftovers::of_bake as left_of_bake;
#[cfg(feature = "root")]
pub(crate) use leftovers::of_vms as remains_of_vms;
#[cfg(feature = "root")]
pub(crate) use server::StoppedServer;
pub(crate) use server::{Answer, Skep, binary, output_of, send, serve, serve_anywhere, try_send};
#[cfg(feature = "root")]
pub(crate) use tenants::Tenant;
#[cfg(feature = "root")]
pub(crate) use vms::{connect_in_namespace, kill};
pub(crate) use wait::eventually;
