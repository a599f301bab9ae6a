//! The egress process: connects VMs to hosts outside, by the policy of each VM.
//!
//! ```text
//! VM ── TCP, redirected ──► proxy ── policy, first bytes ──► look-up, judged address ──► host
//!    ── DNS ─────────────► forwarder: allowed names get placeholder addresses
//! ```
//! The process has no privilege. Its listeners are sockets of the VMs' network namespace that the keeper passes, and the
//! source address of a connection identifies the VM, since the packet filter drops others. Its own sockets are in the
//! host's namespace, so it is the only connection between both.

mod confine;
mod connection;
mod connector;
mod control;
mod dns;
mod first_bytes;
mod limits;
mod names;
mod proxy;
mod transfer;
mod vms;

pub use confine::confine;
pub use control::{Listeners, Settings, serve};
pub use limits::Limits;
pub use names::Names;
