//! The sockets that the egress process serves.

use std::{net::SocketAddrV4, os::fd::OwnedFd};

use crate::{DNS_PORT, EGRESS_PORT, Subnet};

/// Sockets in the namespace of the VMs for the egress process, in the order in which it inherits them.
#[derive(Debug)]
pub struct EgressListeners {
    /// The packet filter redirects connections of VMs to this listener.
    pub proxy: OwnedFd,
    pub dns_udp: OwnedFd,
    pub dns_tcp: OwnedFd,
}

impl EgressListeners {
    /// Whether these are sockets at the bridge's address of this subnet, with the ports that they should have.
    pub fn are_of(&self, subnet: Subnet) -> bool {
        let has = |socket: &OwnedFd, port: u16| {
            let address =
                rustix::net::getsockname(socket).ok().and_then(|found| SocketAddrV4::try_from(found).ok());
            address == Some(SocketAddrV4::new(subnet.gateway(), port))
        };
        has(&self.proxy, EGRESS_PORT) && has(&self.dns_udp, DNS_PORT) && has(&self.dns_tcp, DNS_PORT)
    }
}
