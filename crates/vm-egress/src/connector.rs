//! Connections to hosts outside: look-up, judgement of the addresses, and the connection to one of them.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{PoisonError, RwLock},
    time::Duration,
};

use hickory_resolver::{
    TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::runtime::TokioRuntimeProvider,
};
use skep_egress::{AddressRefusal, Rules};
use tokio::{net::TcpStream, time::timeout};

/// Limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit for each question to a name server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const QUERY_ATTEMPTS: usize = 2;
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

/// Makes connections by the operator's rules.
pub(crate) struct Connector {
    /// It is replaced when the name servers change.
    resolver: RwLock<TokioResolver>,
    rules: Rules,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Refused(#[from] AddressRefusal),
    #[error("the name is not found")]
    NotFound,
    #[error("no connection: {}", .0.kind())]
    Unreachable(io::Error),
}

/// A resolver that asks these name servers, without a search list: a VM's name means the same on every server.
fn resolver(servers: &[SocketAddr]) -> io::Result<TokioResolver> {
    let servers = servers.iter().map(|server| {
        let mut configured = NameServerConfig::udp_and_tcp(server.ip());
        configured.connections.iter_mut().for_each(|connection| connection.port = server.port());
        configured
    });
    let config = ResolverConfig::from_name_servers(servers.collect());
    let mut options = ResolverOpts::default();
    options.timeout = QUERY_TIMEOUT;
    options.attempts = QUERY_ATTEMPTS;
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.with_options(options).build().map_err(io::Error::other)
}

impl Connector {
    /// Without name servers no name is found.
    pub(crate) fn new(rules: Rules) -> io::Result<Self> {
        Ok(Self { resolver: RwLock::new(resolver(&[])?), rules })
    }

    /// Asks these name servers from now on. Answers of the earlier ones are forgotten.
    pub(crate) fn set_name_servers(&self, servers: &[SocketAddr]) -> io::Result<()> {
        *self.resolver.write().unwrap_or_else(PoisonError::into_inner) = resolver(servers)?;
        Ok(())
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Connects to a name or an address. The addresses that are judged are the ones that are connected to.
    pub(crate) async fn connect(
        &self,
        name: Option<&str>,
        address: IpAddr,
        port: u16,
    ) -> Result<TcpStream, Error> {
        let addresses = match name {
            Some(name) => self.look_up(name).await?,
            None => vec![address],
        };
        let mut refusal = None;
        let mut failure = None;
        for address in addresses {
            if let Err(reason) = self.rules.judge(name, address) {
                refusal = Some(reason);
                continue;
            }
            match self.connect_to(name, SocketAddr::new(address, port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.or(refusal.map(Error::Refused)).unwrap_or(Error::NotFound))
    }

    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        // With a final dot, so that no search list applies.
        let resolver = self.resolver.read().unwrap_or_else(PoisonError::into_inner).clone();
        let found = resolver.lookup_ip(format!("{name}.")).await.map_err(|_| Error::NotFound)?;
        Ok(found.iter().take(MAX_ADDRESSES).collect())
    }

    async fn connect_to(&self, name: Option<&str>, target: SocketAddr) -> Result<TcpStream, Error> {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = connected.map_err(Error::Unreachable)?;
        // The machine may have got the address since it was judged.
        let ends = stream.local_addr().and_then(|here| Ok((here.ip(), stream.peer_addr()?.ip())));
        let (here, there) = ends.map_err(Error::Unreachable)?;
        if here == there && !self.rules.lists(name, there.to_canonical()) {
            return Err(AddressRefusal::OwnAddress.into());
        }
        Ok(stream)
    }
}
