//! Configures network links over rtnetlink.

use std::net::Ipv4Addr;

use futures_util::TryStreamExt;
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkUnspec,
    packet_route::{
        link::LinkAttribute,
        neighbour::{NeighbourFlags, NeighbourState},
    },
};

use crate::Error;

/// The links in the namespace of this thread.
#[derive(Debug)]
pub(crate) struct Links {
    handle: Handle,
}

/// The bytes that the host received and sent over a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkTraffic {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

impl Links {
    /// Spawns the netlink connection, so it must run in a Tokio runtime.
    pub(crate) fn connect() -> Result<Self, Error> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::io("netlink socket"))?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    pub(crate) async fn set_up(&self, name: &str) -> Result<(), Error> {
        let change = LinkUnspec::new_with_name(name).up().build();
        self.handle.link().set(change).execute().await.map_err(Error::link(format!("start of link {name}")))
    }

    /// Adds a bridge with a fixed MAC address. Without one, it would use that of a port and change with the ports.
    pub(crate) async fn add_bridge(&self, name: &str, mac: [u8; 6]) -> Result<u32, Error> {
        let bridge = LinkBridge::new(name).address(mac.to_vec()).build();
        self.handle.link().add(bridge).execute().await.map_err(Error::link(format!("bridge {name}")))?;
        self.find(name).await
    }

    /// Has the bridge learn nothing from frames to the reserved addresses 01:80:c2:00:00:00 to :0f. They do not pass the packet
    /// filter, so a VM could send one with the MAC address of another VM, whose frames the bridge would then send to it.
    pub(crate) async fn ignore_reserved_frames(&self, bridge: &str) -> Result<(), Error> {
        let change = LinkBridge::new(bridge).no_linklocal_learn(true).build();
        self.handle.link().change(change).execute().await.map_err(Error::link(format!("bridge {bridge}")))
    }

    pub(crate) async fn add_address(
        &self,
        link: u32,
        address: Ipv4Addr,
        prefix_len: u8,
    ) -> Result<(), Error> {
        let request = self.handle.address().add(link, address.into(), prefix_len);
        request.execute().await.map_err(Error::link(format!("address {address}/{prefix_len}")))
    }

    /// The index of a link. Fails if it does not exist.
    pub(crate) async fn find(&self, name: &str) -> Result<u32, Error> {
        self.index(name).await?.ok_or_else(|| Error::NoLink(name.to_owned()))
    }

    pub(crate) async fn names(&self) -> Result<Vec<String>, Error> {
        let links = self.handle.link().get().execute().try_collect::<Vec<_>>().await;
        let links = links.map_err(Error::link("list of links"))?.into_iter();
        Ok(links
            .filter_map(|link| {
                link.attributes.into_iter().find_map(|attribute| match attribute {
                    LinkAttribute::IfName(name) => Some(name),
                    _ => None,
                })
            })
            .collect())
    }

    /// Makes a link an isolated port of the bridge, which cannot exchange frames with other isolated ports. It has this MAC
    /// address.
    pub(crate) async fn add_port(&self, name: &str, bridge: u32, mac: [u8; 6]) -> Result<(), Error> {
        let index = self.find(name).await?;
        let change = LinkUnspec::new_with_index(index).controller(bridge).build();
        let failed = || Error::link(format!("port {name}"));
        self.handle.link().set(change).execute().await.map_err(failed())?;
        // The port is confined before it is up, so that no frame passes.
        self.confine_port(index, mac).await.map_err(failed())?;
        let change = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(change).execute().await.map_err(failed())
    }

    /// As [`Self::add_port`], for a port that an earlier process added. One that does not exist any more is not an error.
    pub(crate) async fn keep_port(&self, name: &str, mac: [u8; 6]) -> Result<(), Error> {
        let Some(index) = self.index(name).await? else { return Ok(()) };
        match self.confine_port(index, mac).await {
            Err(error) if is_missing(&error) => Ok(()),
            other => other.map_err(Error::link(format!("port {name}"))),
        }
    }

    /// Isolates a port, and has it get exactly the frames to its MAC address. What the bridge learns ends after some minutes without a
    /// frame of the VM, and frames to an address that it does not know go to all ports.
    async fn confine_port(&self, index: u32, mac: [u8; 6]) -> Result<(), rtnetlink::Error> {
        let fixed = self.handle.neighbours().add_bridge(index, &mac).replace();
        fixed.state(NeighbourState::Noarp).flags(NeighbourFlags::Controller).execute().await?;
        let port = LinkBridgePort::new(index).isolated(true).learning(false).flood(false).build();
        self.handle.link().set_port(port).execute().await
    }

    /// Deletes a link, if it exists.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Error> {
        let Some(index) = self.index(name).await? else { return Ok(()) };
        match self.handle.link().del(index).execute().await {
            // The kernel removed it with its last descriptor meanwhile.
            Err(error) if is_missing(&error) => Ok(()),
            other => other.map_err(Error::link(format!("removal of link {name}"))),
        }
    }

    /// The bytes that passed a link. `None` if it does not exist.
    pub(crate) async fn traffic(&self, name: &str) -> Result<Option<LinkTraffic>, Error> {
        let mut found = std::pin::pin!(self.handle.link().get().match_name(name.to_owned()).execute());
        let link = match found.try_next().await {
            Ok(link) => link,
            Err(error) if is_missing(&error) => None,
            Err(error) => return Err(Error::link(format!("counters of link {name}"))(error)),
        };
        Ok(link.into_iter().flat_map(|link| link.attributes).find_map(|attribute| match attribute {
            LinkAttribute::Stats64(counters) => {
                Some(LinkTraffic { received_bytes: counters.rx_bytes, sent_bytes: counters.tx_bytes })
            }
            _ => None,
        }))
    }

    async fn index(&self, name: &str) -> Result<Option<u32>, Error> {
        let mut found = std::pin::pin!(self.handle.link().get().match_name(name).execute());
        match found.try_next().await {
            Ok(link) => Ok(link.map(|link| link.header.index)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(Error::link(format!("link {name}"))(error)),
        }
    }
}

fn is_missing(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -libc::ENODEV)
}
