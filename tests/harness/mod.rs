//! The test harness: a real server, and checks that it leaves nothing behind.

pub(crate) mod faults;
#[cfg(feature = "root")]
pub(crate) mod images;
mod patience;
mod remains;
mod server;
#[cfg(feature = "root")]
mod tenants;
#[cfg(feature = "root")]
mod vms;
mod wire;

pub(crate) use patience::eventually;
#[cfg(feature = "root")]
pub(crate) use remains::of as remains_of;
#[cfg(feature = "root")]
pub(crate) use remains::of_bake as left_of_bake;
#[cfg(feature = "root")]
pub(crate) use remains::of_vms as remains_of_vms;
#[cfg(feature = "root")]
pub(crate) use server::Wreck;
pub(crate) use server::{Answer, Skep, binary, ended, send, serve, serve_anywhere, try_send};
#[cfg(feature = "root")]
pub(crate) use tenants::Tenant;
#[cfg(feature = "root")]
pub(crate) use vms::{connect_in_namespace, kill};
