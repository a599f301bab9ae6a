//! The process's main function: applies the keeper's requests, and serves VMs once all policies are set.

use std::{collections::HashSet, fs::File, io, net::Ipv4Addr, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::process::{Resource, getrlimit};
use skep_egress::Rules;
use skep_keeper_protocol::{
    EgressAnswer, EgressControl, EgressProcessEnd, EgressRequest, EgressTotals, Envelope,
};
use tokio::{
    net::{TcpListener, UdpSocket},
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    connector::Connector,
    dns,
    limits::Limits,
    names::{Names, release_unused},
    proxy::Proxy,
    transfer::MAX_LARGE,
    vms::Vms,
};

/// Descriptors for anything but connections of the proxy, such as those for DNS.
const OTHER_DESCRIPTORS: u64 = dns::MAX_CONNECTIONS as u64 + 64;

/// How long connections live on after another process has taken the place of this one.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Listeners in the namespace of the VMs.
#[derive(Debug)]
pub struct Listeners {
    /// The packet filter redirects connections of VMs to this listener.
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
/// A socket cannot be used, or a task that serves VMs has ended. The keeper starts the process again.
pub async fn serve(control: OwnedFd, listeners: Listeners, settings: Settings) -> io::Result<()> {
    let control = EgressControl::new(control).map_err(io::Error::other)?;
    let mut replaced = signal(SignalKind::terminate())?;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = (descriptors.saturating_sub(OTHER_DESCRIPTORS) / 3)
        .clamp(1, u64::from(settings.limits.all_connections.get()));
    let proxy = Arc::new(Proxy {
        vms: Arc::new(Vms::new(settings.limits)),
        names: Arc::new(settings.names),
        connector: Connector::new(settings.rules)?,
        connections: Arc::new(Semaphore::new(connections as usize)),
        large_buffers: Arc::new(Semaphore::new(MAX_LARGE)),
    });
    let mut server =
        Server { proxy: Arc::clone(&proxy), listeners: Some(listeners), tasks: JoinSet::default() };
    tokio::select! {
        served = server.serve_keepers(&control) => return served,
        _ = replaced.recv() => {}
    }
    // New connections are those of the next process, which has the same listeners.
    server.tasks.shutdown().await;
    proxy.names.close_file()?;
    let all = proxy.connections.acquire_many(connections as u32);
    // At the end of the time the last connections end with the process.
    let _ = timeout(DRAIN_TIMEOUT, all).await;
    Ok(())
}

/// Applies the requests of keepers.
struct Server {
    proxy: Arc<Proxy>,
    /// Until VMs are served.
    listeners: Option<Listeners>,
    /// The tasks that serve VMs. None of them ends by itself.
    tasks: JoinSet<()>,
}

impl Server {
    /// Serves one keeper after the other.
    async fn serve_keepers(&mut self, control: &EgressControl) -> io::Result<()> {
        loop {
            let keeper = tokio::select! {
                keeper = control.accept() => keeper.map_err(io::Error::other)?,
                Some(ended) = self.tasks.join_next() => return Err(task_end(ended)),
            };
            self.serve_keeper(&keeper).await?;
            if self.proxy.vms.addresses().is_empty() {
                return Ok(());
            }
        }
    }

    /// Serves a keeper until it is gone, or sends or accepts what it should not. Other errors are of this process.
    async fn serve_keeper(&mut self, keeper: &EgressProcessEnd) -> io::Result<()> {
        // VMs of an earlier keeper that this one has not named.
        let mut unnamed = self.proxy.vms.addresses();
        loop {
            let received = tokio::select! {
                received = keeper.receive() => received,
                Some(ended) = self.tasks.join_next() => return Err(task_end(ended)),
            };
            let Ok(Some(Envelope { id, body })) = received else { return Ok(()) };
            let answer = self.apply(body, &mut unnamed)?;
            if keeper.answer(id, answer).await.is_err() {
                return Ok(());
            }
        }
    }

    fn apply(&mut self, request: EgressRequest, unnamed: &mut HashSet<Ipv4Addr>) -> io::Result<EgressAnswer> {
        let vms = &self.proxy.vms;
        match request {
            EgressRequest::Set { vm, egress } => {
                unnamed.remove(&vm);
                vms.set(vm, egress);
            }
            EgressRequest::Forget { vm } => vms.forget(vm),
            EgressRequest::NameServers { servers } => self.proxy.connector.set_name_servers(&servers)?,
            EgressRequest::Serve => {
                unnamed.drain().for_each(|vm| vms.forget(vm));
                if let Some(listeners) = self.listeners.take() {
                    self.begin(listeners)?;
                }
            }
            EgressRequest::Report { vm } => {
                return Ok(EgressAnswer::Report(vms.find(vm).map(|vm| vm.report()).unwrap_or_default()));
            }
            EgressRequest::Totals => {
                let names = self.proxy.names.used() as u64;
                return Ok(EgressAnswer::Totals(EgressTotals { names, ..vms.totals() }));
            }
        }
        Ok(EgressAnswer::Done)
    }

    fn begin(&mut self, listeners: Listeners) -> io::Result<()> {
        let Listeners { proxy: redirected, dns_udp, dns_tcp } = listeners;
        redirected.set_nonblocking(true)?;
        dns_udp.set_nonblocking(true)?;
        dns_tcp.set_nonblocking(true)?;
        let (udp, tcp) = (UdpSocket::from_std(dns_udp)?, TcpListener::from_std(dns_tcp)?);
        let redirected = TcpListener::from_std(redirected)?;
        let (vms, names) = (&self.proxy.vms, &self.proxy.names);
        let all = Arc::new(Semaphore::new(dns::MAX_CONNECTIONS));
        self.tasks.spawn(dns::serve_udp(udp, Arc::clone(vms), Arc::clone(names)));
        self.tasks.spawn(dns::serve_tcp(tcp, Arc::clone(vms), Arc::clone(names), all));
        self.tasks.spawn(Arc::clone(&self.proxy).serve(redirected));
        self.tasks.spawn(release_unused(Arc::clone(vms), Arc::clone(names)));
        Ok(())
    }
}

/// The error of a task that serves VMs and has ended, which only a panic causes.
fn task_end(ended: Result<(), JoinError>) -> io::Error {
    ended.map_or_else(io::Error::other, |()| io::Error::other("a task that serves VMs has ended"))
}

#[cfg(test)]
mod tests {
    use skep_api::{
        AccountId,
        egress::{EgressPolicy, EgressReport},
    };
    use skep_keeper_protocol::{EgressKeeperEnd, EgressRefusal, VmEgress, pair};

    use super::*;
    use crate::vms::{Outcome, Target};

    const VM: Ipv4Addr = Ipv4Addr::LOCALHOST;

    fn server() -> Server {
        let names = Names::open(tempfile::tempfile().unwrap()).unwrap();
        let proxy = Arc::new(Proxy {
            vms: Arc::new(Vms::new(Limits::default())),
            names: Arc::new(names),
            connector: Connector::new(Rules::default()).unwrap(),
            connections: Arc::new(Semaphore::new(10)),
            large_buffers: Arc::new(Semaphore::new(1)),
        });
        let tcp = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dns_udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listeners = Listeners { proxy: tcp(), dns_udp, dns_tcp: tcp() };
        Server { proxy, listeners: Some(listeners), tasks: JoinSet::new() }
    }

    fn ends() -> (EgressKeeperEnd, EgressProcessEnd) {
        let (ours, theirs) = pair().unwrap();
        (EgressKeeperEnd::new(ours).unwrap(), EgressProcessEnd::new(theirs).unwrap())
    }

    fn all() -> VmEgress {
        VmEgress::new(AccountId::generate(), EgressPolicy::All)
    }

    async fn report(keeper: &EgressKeeperEnd) -> EgressReport {
        match keeper.request(EgressRequest::Report { vm: VM }).await.unwrap() {
            EgressAnswer::Report(report) => report,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_largest_report_reaches_the_keeper() {
        let (keeper, process) = ends();
        let mut server = server();
        let vms = Arc::clone(&server.proxy.vms);
        let ask = async {
            keeper.request(EgressRequest::Set { vm: VM, egress: all() }).await.unwrap();
            let name = vec!["n".repeat(62); 4].join(".");
            let target = Target { name: Some(name.into()), address: Some(VM.into()), port: Some(443) };
            for _ in 0..100 {
                // A reason may contain any characters, some of which JSON has to escape.
                let reason = "\u{10fffd}\n".repeat(64);
                vms.find(VM).unwrap().record(&target, Outcome::Refused(EgressRefusal::OtherHost, reason));
            }
            let report = report(&keeper).await;
            assert_eq!(report.refused, 100);
            assert!(!report.tries.is_empty());
            drop(keeper);
        };
        let (served, ()) = tokio::join!(server.serve_keeper(&process), ask);
        served.unwrap();
    }

    #[tokio::test]
    async fn a_task_that_ends_ends_the_process() {
        let (keeper, process) = ends();
        let mut server = server();
        begin_by_request(&keeper, &process, &mut server).await;
        assert_eq!(server.tasks.len(), 4);
        server.tasks.spawn(async {});
        let error = server.serve_keeper(&process).await.unwrap_err();
        assert_eq!(error.to_string(), "a task that serves VMs has ended");
        // Without a keeper as well.
        let folder = tempfile::tempdir().unwrap();
        let listener =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
                .unwrap();
        let address = rustix::net::SocketAddrUnix::new(folder.path().join("socket")).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let control = EgressControl::new(listener).unwrap();
        server.tasks.spawn(async { panic!("as by a query that nobody expected") });
        let error = server.serve_keepers(&control).await.unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    /// Has the server serve VMs.
    async fn begin_by_request(keeper: &EgressKeeperEnd, process: &EgressProcessEnd, server: &mut Server) {
        tokio::select! {
            served = server.serve_keeper(process) => panic!("{served:?}"),
            answer = keeper.request(EgressRequest::Serve) => assert!(matches!(answer, Ok(EgressAnswer::Done))),
        }
    }

    #[tokio::test]
    async fn an_error_at_the_beginning_ends_the_process() {
        let (keeper, process) = ends();
        let mut server = server();
        // A socket that does not listen cannot be that of a task.
        let broken = std::fs::File::open("/dev/null").unwrap();
        server.listeners.as_mut().unwrap().dns_tcp = OwnedFd::from(broken).into();
        let (served, answer) = tokio::join!(
            async {
                let served = server.serve_keeper(&process).await;
                drop(process);
                served
            },
            keeper.request(EgressRequest::Serve)
        );
        assert!(served.is_err() && answer.is_err(), "{served:?} {answer:?}");
    }
}
