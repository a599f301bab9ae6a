//! The network inside its namespace: links, addresses and the packet filter.

use std::{collections::BTreeSet, net::Ipv4Addr, os::fd::OwnedFd};

use crate::{
    BRIDGE, Error, KnownAddress, Port, Subnet, Tap, Traffic,
    addresses::{AddressPool, Slot},
    links::Links,
    namespace::{self, Namespace},
    ruleset::{self, VmSet},
    tap,
};

pub(crate) struct NetworkState {
    links: Links,
    bridge: u32,
    pub(crate) subnet: Subnet,
    pub(crate) addresses: AddressPool,
    /// VMs that may reach the API.
    admitted: BTreeSet<Slot>,
    /// VMs whose connections to the outside go to the egress process.
    egress: BTreeSet<Slot>,
}

impl NetworkState {
    pub(crate) async fn create(name: &str, subnet: Subnet) -> Result<Self, Error> {
        // Removed by its drop after an error.
        let namespace = Namespace::create(name)?;
        let network = Self::build(subnet).await?;
        namespace.persist();
        Ok(network)
    }

    pub(crate) async fn adopt(
        name: &str,
        subnet: Subnet,
        addresses: &[KnownAddress],
    ) -> Result<(Self, Vec<Port>), Error> {
        Namespace::enter(name)?;
        namespace::disable_forwarding()?;
        let links = Links::connect()?;
        let bridge = links.find(BRIDGE).await?;
        // An earlier release may have created it.
        links.ignore_reserved_frames(BRIDGE).await?;
        let mut network = Self::new(links, bridge, subnet);
        let mut ports = Vec::new();
        let names = network.links.names().await?;
        for known in addresses {
            let Some(slot) = subnet.slot(known.ip) else { continue };
            let port = network.port(slot);
            if names.contains(&port.name) && network.addresses.adopt(slot) {
                network.links.keep_port(&port.name, port.mac).await?;
                ports.push(port);
                if known.admitted {
                    network.admitted.insert(slot);
                }
                if known.egress {
                    network.egress.insert(slot);
                }
            }
        }
        let addresses = |slots: &BTreeSet<Slot>| -> Vec<Ipv4Addr> {
            slots.iter().map(|slot| subnet.address(*slot)).collect()
        };
        ruleset::load(subnet, &addresses(&network.admitted), &addresses(&network.egress))?;
        namespace::shorten_tracking()?;
        let fixed = |name: &str| name == BRIDGE || name == "lo";
        for name in names.iter().filter(|name| !fixed(name) && ports.iter().all(|port| port.name != **name)) {
            network.links.delete(name).await?;
        }
        Ok((network, ports))
    }

    async fn build(subnet: Subnet) -> Result<Self, Error> {
        namespace::disable_forwarding()?;
        // The filter first, so that no frame passes without it.
        ruleset::load(subnet, &[], &[])?;
        namespace::shorten_tracking()?;
        let links = Links::connect()?;
        links.set_up("lo").await?;
        let bridge = links.add_bridge(BRIDGE, subnet.mac(subnet.gateway())).await?;
        links.ignore_reserved_frames(BRIDGE).await?;
        links.add_address(bridge, subnet.gateway(), subnet.prefix_len()).await?;
        links.set_up(BRIDGE).await?;
        Ok(Self::new(links, bridge, subnet))
    }

    fn new(links: Links, bridge: u32, subnet: Subnet) -> Self {
        Self {
            links,
            bridge,
            subnet,
            addresses: AddressPool::new(subnet.slots()),
            admitted: BTreeSet::new(),
            egress: BTreeSet::new(),
        }
    }

    pub(crate) fn reserve(&mut self, ip: Ipv4Addr, reserved: bool) -> Result<(), Error> {
        let slot = self.subnet.slot(ip).ok_or(Error::ForeignAddress(ip))?;
        if reserved {
            self.addresses.reserve(slot);
        } else {
            self.addresses.end_reservation(slot);
        }
        Ok(())
    }

    pub(crate) async fn add(&mut self) -> Result<Tap, Error> {
        let slot = self.addresses.take().ok_or(Error::NoAddress(self.subnet))?;
        self.add_with(slot).await
    }

    pub(crate) async fn add_at(&mut self, ip: Ipv4Addr) -> Result<Tap, Error> {
        let slot = self.subnet.slot(ip).ok_or(Error::ForeignAddress(ip))?;
        if !self.addresses.adopt(slot) {
            return Err(Error::AddressTaken(ip));
        }
        self.add_with(slot).await
    }

    /// Creates the tap of a slot that was taken for it.
    async fn add_with(&mut self, slot: Slot) -> Result<Tap, Error> {
        let port = self.port(slot);
        match self.attach(&port).await {
            Ok(fd) => Ok(Tap { fd, port }),
            Err(error) => {
                self.addresses.release(slot);
                Err(error)
            }
        }
    }

    fn port(&self, slot: Slot) -> Port {
        let ip = self.subnet.address(slot);
        Port {
            name: ruleset::tap_name(slot),
            ip,
            prefix_len: self.subnet.prefix_len(),
            gateway: self.subnet.gateway(),
            mac: self.subnet.mac(ip),
            slot,
        }
    }

    async fn attach(&self, port: &Port) -> Result<OwnedFd, Error> {
        let fd = tap::open(&port.name)?;
        self.links.add_port(&port.name, self.bridge, port.mac).await?;
        Ok(fd)
    }

    /// Blocks for some milliseconds.
    pub(crate) fn admit(&mut self, port: &Port) -> Result<(), Error> {
        // If the VM ended meanwhile, the address may belong to another VM next.
        if !self.addresses.is_taken(port.slot) {
            return Err(Error::PortRemoved(port.ip));
        }
        ruleset::add(VmSet::ApiCallers, port.ip)?;
        self.admitted.insert(port.slot);
        Ok(())
    }

    /// Blocks for some milliseconds.
    pub(crate) fn set_egress(&mut self, port: &Port, redirected: bool) -> Result<(), Error> {
        if !self.addresses.is_taken(port.slot) {
            return Err(Error::PortRemoved(port.ip));
        }
        if redirected {
            ruleset::add(VmSet::Egress, port.ip)?;
            self.egress.insert(port.slot);
        } else if self.egress.contains(&port.slot) {
            ruleset::remove(VmSet::Egress, port.ip)?;
            self.egress.remove(&port.slot);
        }
        Ok(())
    }

    pub(crate) async fn traffic(&self, port: &Port) -> Result<Traffic, Error> {
        let counted = self.links.traffic(&port.name).await?.ok_or(Error::PortRemoved(port.ip))?;
        // What the host receives over the tap, the VM has sent.
        Ok(Traffic { received_bytes: counted.sent_bytes, sent_bytes: counted.received_bytes })
    }

    pub(crate) async fn remove(&mut self, port: &Port) -> Result<(), Error> {
        self.links.delete(&port.name).await?;
        // Before the address can be assigned to another VM.
        if self.admitted.contains(&port.slot) {
            ruleset::remove(VmSet::ApiCallers, port.ip)?;
            self.admitted.remove(&port.slot);
        }
        self.set_egress(port, false)?;
        self.addresses.release(port.slot);
        Ok(())
    }
}
