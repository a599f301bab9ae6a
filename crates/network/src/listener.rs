//! The listening sockets for VMs: of the API and of the egress process.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    time::{Duration, Instant},
};

use rustix::net::listen;
use tokio::time::sleep;

use crate::{DNS_PORT, EGRESS_PORT, EgressListeners, Error};

/// How long to wait while another process uses the address.
const BIND_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to bind.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// A few VMs could fill the standard library's backlog of 128.
const BACKLOG: i32 = 1024;

/// Binds and listens in the namespace of this thread. The socket stays in it when it is passed to another process.
pub(crate) async fn bind(ip: Ipv4Addr, port: u16) -> Result<TcpListener, Error> {
    let listener = bind_when_free(ip, port, || TcpListener::bind((ip, port))).await?;
    listen(&listener, BACKLOG).map_err(Error::io(format!("listening at {ip}:{port}")))?;
    Ok(listener)
}

/// Opens the listeners of the egress process. A redirected connection has the bridge's address as its destination.
pub(crate) async fn bind_for_egress(bridge: Ipv4Addr) -> Result<EgressListeners, Error> {
    let udp = bind_when_free(bridge, DNS_PORT, || UdpSocket::bind((bridge, DNS_PORT))).await?;
    Ok(EgressListeners {
        proxy: bind(bridge, EGRESS_PORT).await?.into(),
        dns_udp: udp.into(),
        dns_tcp: bind(bridge, DNS_PORT).await?.into(),
    })
}

async fn bind_when_free<S>(ip: Ipv4Addr, port: u16, bind: impl Fn() -> io::Result<S>) -> Result<S, Error> {
    let what = format!("listening at {ip}:{port} in the namespace of the VMs");
    let begun = Instant::now();
    loop {
        match bind() {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < BIND_TIMEOUT => {
                sleep(RETRY_INTERVAL).await
            }
            Err(error) => return Err(Error::io(what)(error)),
        }
    }
}
