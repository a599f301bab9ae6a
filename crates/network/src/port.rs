//! A VM's port of the bridge.

use std::{net::Ipv4Addr, os::fd::OwnedFd};

use crate::addresses::Slot;

#[derive(Debug)]
pub struct Tap {
    /// To be inherited by the VMM. The kernel removes the tap when its last descriptor closes.
    pub fd: OwnedFd,
    pub port: Port,
}

/// A port of the bridge, and the addresses that may send there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name of the tap device.
    pub name: String,
    pub ip: Ipv4Addr,
    pub prefix_len: u8,
    pub gateway: Ipv4Addr,
    /// The guest's MAC address: locally administered, derived from the IP address.
    pub mac: [u8; 6],
    pub(crate) slot: Slot,
}

/// The bytes that a VM received and sent, link-layer headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// The address of a VM that an earlier process created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAddress {
    pub ip: Ipv4Addr,
    /// Whether the VM was admitted to the API.
    pub admitted: bool,
    /// Whether its connections to the outside went to the egress process.
    pub egress: bool,
}
