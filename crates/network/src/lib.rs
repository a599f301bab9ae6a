//! The network of the VMs: a network namespace with a bridge, and a tap with its own address for each VM.
//!
//! Processes in the namespace can connect to every VM. VMs cannot open connections: neither to the bridge's address,
//! nor to the host, nor to other VMs; see [`ruleset`]. The exceptions are the API at the bridge's address, for VMs that
//! were [admitted](Network::admit), and the listeners of the egress process, for VMs that have
//! [egress](Network::set_egress).

mod addresses;
mod egress_listeners;
mod error;
mod links;
mod listener;
mod namespace;
mod network;
mod port;
pub mod ruleset;
mod state;
mod subnet;
mod tap;
mod thread;

pub use egress_listeners::EgressListeners;
pub use error::Error;
pub use network::Network;
pub use port::{KnownAddress, Port, Tap, Traffic};
pub use subnet::Subnet;

pub const BRIDGE: &str = "skep0";
/// The port of the API at the bridge's address.
pub const API_PORT: u16 = 7700;
/// The port that connections of VMs to the outside are redirected to.
const EGRESS_PORT: u16 = 7701;
/// The port of the DNS forwarder at the bridge's address.
const DNS_PORT: u16 = 53;
