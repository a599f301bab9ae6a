//! Accepts the connections of VMs that the packet filter redirects.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustix::net::sockopt::ip_original_dst;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{
    connection::{self, RedirectedConnection},
    connector::Connector,
    names::Names,
    vms::Vms,
};

/// How long to wait after a connection could not be accepted, usually because no descriptor is free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What connections need.
pub(crate) struct Proxy {
    pub(crate) vms: Arc<Vms>,
    pub(crate) names: Arc<Names>,
    pub(crate) connector: Connector,
    /// Limit of all connections; further ones wait in the queue of the listener.
    pub(crate) connections: Arc<Semaphore>,
    /// Limit of the large buffers of all connections.
    pub(crate) large_buffers: Arc<Semaphore>,
}

impl Proxy {
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            // The semaphore is never closed, so this never fails.
            let permit = Arc::clone(&self.connections).acquire_owned().await;
            let (guest, source) = accept(&listener).await;
            let (Some(source), Ok(destination)) = (source_of(source), ip_original_dst(&guest)) else {
                // A connection without an original destination was not redirected by the packet filter.
                connection::reset(guest);
                continue;
            };
            let redirected = RedirectedConnection { guest, source, destination };
            let this = Arc::clone(&self);
            tokio::spawn(async move {
                let _permit = permit;
                connection::handle(&this, redirected).await;
            });
        }
    }
}

/// Accepts the next connection. Errors are of a single connection, or pass.
pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

/// The address of the VM that sent something.
pub(crate) fn source_of(source: SocketAddr) -> Option<Ipv4Addr> {
    match source.ip().to_canonical() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
