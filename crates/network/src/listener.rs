//! The listening socket of the API for VMs.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    time::{Duration, Instant},
};

use rustix::net::listen;
use tokio::time::sleep;

use crate::Error;

/// How long to wait while another process uses the address.
const BIND_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to bind.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// A few VMs could fill the standard library's backlog of 128.
const BACKLOG: i32 = 1024;

/// Binds and listens in the namespace of this thread. The socket stays in it when it is passed to another process.
pub(crate) async fn bind(ip: Ipv4Addr, port: u16) -> Result<TcpListener, Error> {
    let what = format!("listening at {ip}:{port} in the namespace of the VMs");
    let begun = Instant::now();
    loop {
        match TcpListener::bind((ip, port)) {
            Ok(listener) => {
                listen(&listener, BACKLOG).map_err(Error::io(what))?;
                return Ok(listener);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < BIND_TIMEOUT => {
                sleep(RETRY_INTERVAL).await
            }
            Err(error) => return Err(Error::io(what)(error)),
        }
    }
}
