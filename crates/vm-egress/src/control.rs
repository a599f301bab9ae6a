//! The process's main function: applies the keeper's requests, and serves VMs once all policies are set.

use std::{fs::File, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::process::{Resource, getrlimit};
use skep_keeper_protocol::{EgressAnswer, EgressControl, EgressProcessEnd, EgressRequest, Envelope};
use tokio::{
    net::{TcpListener, UdpSocket},
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use crate::{dns, limits::Limits, names::Names, outside::Outside, proxy::Proxy, rules::Rules, vms::Vms};

/// Descriptors for anything but connections of the proxy, such as those for DNS.
const OTHER_DESCRIPTORS: u64 = 1088;

/// How long connections live on after another process has taken the place of this one.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

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
    limits: Limits,
    names: Names,
}

impl Settings {
    /// `names` is the file of the installation's names.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(rules: Rules, limits: Limits, names: File) -> io::Result<Self> {
        Ok(Self { rules, limits, names: Names::open(names)? })
    }
}

/// Serves until the keeper is gone and no VM has a policy, or until the process has to make place for another one and
/// its connections have ended. Without a keeper the VMs keep the policies that they have, until the next one connects.
///
/// # Errors
/// A socket cannot be used.
pub async fn serve(control: OwnedFd, listeners: Listeners, settings: Settings) -> io::Result<()> {
    let control = EgressControl::new(control).map_err(io::Error::other)?;
    let mut replaced = signal(SignalKind::terminate())?;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = (descriptors.saturating_sub(OTHER_DESCRIPTORS) / 3)
        .clamp(1, u64::from(settings.limits.all_connections.get()));
    let proxy = Arc::new(Proxy {
        vms: Arc::new(Vms::new(settings.limits)),
        names: Arc::new(settings.names),
        outside: Outside::new(settings.rules)?,
        connections: Arc::new(Semaphore::new(connections as usize)),
    });
    let mut tasks = JoinSet::new();
    tokio::select! {
        served = serve_keepers(&control, listeners, &proxy, &mut tasks) => return served,
        _ = replaced.recv() => {}
    }
    // New connections are those of the next process, which has the same listeners.
    tasks.shutdown().await;
    proxy.names.release()?;
    let all = proxy.connections.acquire_many(connections as u32);
    // At the end of the time the last connections end with the process.
    let _ = timeout(DRAIN_TIMEOUT, all).await;
    Ok(())
}

/// Serves one keeper after the other.
async fn serve_keepers(
    control: &EgressControl,
    listeners: Listeners,
    proxy: &Arc<Proxy>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let mut listeners = Some(listeners);
    loop {
        let keeper = control.accept().await.map_err(io::Error::other)?;
        // An error is of this keeper only.
        let _ = serve_keeper(&keeper, proxy, &mut listeners, tasks).await;
        if proxy.vms.addresses().is_empty() {
            return Ok(());
        }
    }
}

async fn serve_keeper(
    keeper: &EgressProcessEnd,
    proxy: &Arc<Proxy>,
    listeners: &mut Option<Listeners>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let vms = &proxy.vms;
    // VMs of an earlier keeper that this one has not named.
    let mut unnamed = vms.addresses();
    while let Some(Envelope { id, body }) = keeper.receive().await.map_err(io::Error::other)? {
        let answer = match body {
            EgressRequest::Set { vm, policy } => {
                unnamed.remove(&vm);
                vms.set(vm, policy);
                EgressAnswer::Done
            }
            EgressRequest::Forget { vm } => {
                vms.forget(vm);
                EgressAnswer::Done
            }
            EgressRequest::NameServers { servers } => {
                proxy.outside.set_name_servers(&servers)?;
                EgressAnswer::Done
            }
            EgressRequest::Serve => {
                unnamed.drain().for_each(|vm| vms.forget(vm));
                if let Some(listeners) = listeners.take() {
                    begin(listeners, proxy, tasks)?;
                }
                EgressAnswer::Done
            }
            EgressRequest::Report { vm } => {
                EgressAnswer::Report(vms.find(vm).map(|vm| vm.report()).unwrap_or_default())
            }
            EgressRequest::Totals => EgressAnswer::Totals(vms.totals()),
        };
        keeper.answer(id, answer).await.map_err(io::Error::other)?;
    }
    Ok(())
}

fn begin(listeners: Listeners, proxy: &Arc<Proxy>, tasks: &mut JoinSet<()>) -> io::Result<()> {
    let Listeners { proxy: redirected, dns_udp, dns_tcp } = listeners;
    redirected.set_nonblocking(true)?;
    dns_udp.set_nonblocking(true)?;
    dns_tcp.set_nonblocking(true)?;
    let (vms, names) = (&proxy.vms, &proxy.names);
    let udp = UdpSocket::from_std(dns_udp)?;
    tasks.spawn(dns::serve_udp(udp, Arc::clone(vms), Arc::clone(names)));
    let tcp = TcpListener::from_std(dns_tcp)?;
    tasks.spawn(dns::serve_tcp(tcp, Arc::clone(vms), Arc::clone(names)));
    tasks.spawn(Arc::clone(proxy).serve(TcpListener::from_std(redirected)?));
    Ok(())
}
