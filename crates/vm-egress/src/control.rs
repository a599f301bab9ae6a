//! The process's main function: applies the keeper's requests, and serves VMs once all policies are set.

use std::{fs::File, io, net::SocketAddr, os::fd::OwnedFd, sync::Arc};

use hickory_resolver::config::{ResolverConfig, ResolverOpts};
use rustix::process::{Resource, getrlimit};
use skep_keeper_protocol::{EgressAnswer, EgressProcessEnd, EgressRequest, Envelope};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::Semaphore,
};

use crate::{
    dns,
    names::Names,
    outside::{Outside, resolver_config},
    proxy::Proxy,
    rules::Rules,
    vms::{MAX_CONNECTIONS, Vms},
};

/// Limit of the connections of all VMs.
const MAX_ALL_CONNECTIONS: u64 = 8000;
/// Descriptors for anything but connections of the proxy.
const OTHER_DESCRIPTORS: u64 = 64 + MAX_CONNECTIONS as u64;

/// Listeners in the namespace of the VMs.
#[derive(Debug)]
pub struct Listeners {
    /// To this one the packet filter redirects connections.
    pub proxy: std::net::TcpListener,
    pub dns_udp: std::net::UdpSocket,
    pub dns_tcp: std::net::TcpListener,
}

/// What the process reads before it is confined.
#[derive(Debug)]
pub struct Settings {
    rules: Rules,
    names: Names,
    resolver: (ResolverConfig, ResolverOpts),
}

impl Settings {
    /// `names` is the file of the installation's names; without `resolvers` the machine's name servers are asked.
    ///
    /// # Errors
    /// The file or the settings of the machine's name servers cannot be read.
    pub fn read(rules: Rules, names: File, resolvers: &[SocketAddr]) -> io::Result<Self> {
        Ok(Self { rules, names: Names::open(names)?, resolver: resolver_config(resolvers)? })
    }
}

/// Serves until the keeper is gone.
///
/// # Errors
/// A socket cannot be used, or the keeper sends something else than requests.
pub async fn serve(keeper: OwnedFd, listeners: Listeners, settings: Settings) -> io::Result<()> {
    let keeper = EgressProcessEnd::new(keeper).map_err(io::Error::other)?;
    let (vms, names) = (Arc::new(Vms::default()), Arc::new(settings.names));
    let (config, options) = settings.resolver;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = (descriptors.saturating_sub(OTHER_DESCRIPTORS) / 3).clamp(1, MAX_ALL_CONNECTIONS);
    let proxy = Arc::new(Proxy {
        vms: Arc::clone(&vms),
        names: Arc::clone(&names),
        outside: Outside::new(config, options, settings.rules)?,
        connections: Arc::new(Semaphore::new(connections as usize)),
    });
    let mut listeners = Some(listeners);
    while let Some(Envelope { id, body }) = keeper.receive().await.map_err(io::Error::other)? {
        let answer = match body {
            EgressRequest::Set { vm, policy } => {
                vms.set(vm, policy);
                EgressAnswer::Done
            }
            EgressRequest::Forget { vm } => {
                vms.forget(vm);
                EgressAnswer::Done
            }
            EgressRequest::Serve => {
                if let Some(listeners) = listeners.take() {
                    begin(listeners, &proxy)?;
                }
                EgressAnswer::Done
            }
            EgressRequest::Report { vm } => {
                EgressAnswer::Report(vms.find(vm).map(|vm| vm.report()).unwrap_or_default())
            }
        };
        keeper.answer(id, answer).await.map_err(io::Error::other)?;
    }
    Ok(())
}

fn begin(listeners: Listeners, proxy: &Arc<Proxy>) -> io::Result<()> {
    let Listeners { proxy: redirected, dns_udp, dns_tcp } = listeners;
    redirected.set_nonblocking(true)?;
    dns_udp.set_nonblocking(true)?;
    dns_tcp.set_nonblocking(true)?;
    let (vms, names) = (&proxy.vms, &proxy.names);
    let udp = UdpSocket::from_std(dns_udp)?;
    tokio::spawn(dns::serve_udp(udp, Arc::clone(vms), Arc::clone(names)));
    let tcp = TcpListener::from_std(dns_tcp)?;
    tokio::spawn(dns::serve_tcp(tcp, Arc::clone(vms), Arc::clone(names)));
    tokio::spawn(Arc::clone(proxy).serve(TcpListener::from_std(redirected)?));
    Ok(())
}
