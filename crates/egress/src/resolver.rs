//! Resolution of a host to the addresses that may be connected to.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

use crate::{
    lookup::{Lookup, SystemLookup},
    rules::{Reach, Rules},
};

/// Limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Resolves hosts and checks their addresses. Cheap to clone.
#[derive(Clone)]
pub struct Resolver {
    rules: Arc<Rules>,
    lookup: Arc<dyn Lookup>,
}

/// The addresses of a host, at least one, all of which were checked. Code that connects to them does not look the name up again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedAddresses {
    first: IpAddr,
    others: Vec<IpAddr>,
}

/// Why a host cannot be connected to. The messages do not reveal the addresses of a name.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host has addresses, but none that may be reached.
    #[error("{host} leads to no address that may be reached")]
    Refused { host: String },
    #[error("the host `{host}` is not found")]
    NotFound { host: String, source: io::Error },
}

impl Resolver {
    pub fn new(rules: Arc<Rules>, lookup: Arc<dyn Lookup>) -> Self {
        Self { rules, lookup }
    }

    /// With the resolver of the operating system.
    pub fn system(rules: Rules) -> Self {
        Self::new(Arc::new(rules), Arc::new(SystemLookup))
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Looks a host up once, and returns those of its addresses that may be reached.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn resolve(&self, host: &str, reach: Reach) -> Result<PinnedAddresses, Error> {
        let named = || host.to_owned();
        let found = self.lookup.look_up(host).await;
        let found = found.map_err(|source| Error::NotFound { host: named(), source })?;
        if found.is_empty() {
            return Err(Error::NotFound { host: named(), source: io::ErrorKind::NotFound.into() });
        }
        let mut permitted = found.into_iter().filter(|address| self.rules.permits(host, *address, reach));
        let Some(first) = permitted.next() else { return Err(Error::Refused { host: named() }) };
        Ok(PinnedAddresses { first, others: permitted.collect() })
    }
}

impl PinnedAddresses {
    pub fn first(&self) -> IpAddr {
        self.first
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        [self.first].into_iter().chain(self.others.iter().copied())
    }

    /// Connects to the first address that accepts the connection.
    ///
    /// # Errors
    /// That of the last address.
    pub async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for address in self.addresses() {
            match timeout(CONNECT_TIMEOUT, TcpStream::connect(SocketAddr::new(address, port))).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failure = error,
                Err(_) => failure = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{allowlist::Allowlist, lookup::LookupFuture};

    fn allowing<S: ToString>(entries: &[S]) -> Arc<Rules> {
        let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
        Arc::new(Rules { allow: Allowlist::parse(&entries), ..Rules::default() })
    }

    /// Answers with these addresses, and counts the look-ups.
    struct Fixed(Vec<IpAddr>, AtomicUsize);

    impl Lookup for Fixed {
        fn look_up<'a>(&'a self, _: &'a str) -> LookupFuture<'a> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(self.0.clone()) })
        }
    }

    fn fixed(addresses: Vec<IpAddr>) -> Arc<Fixed> {
        Arc::new(Fixed(addresses, AtomicUsize::new(0)))
    }

    async fn resolved(allow: &[&str], reach: Reach, addresses: &[&str]) -> Result<Vec<String>, Error> {
        let lookup = fixed(addresses.iter().map(|text| text.parse().unwrap()).collect());
        let resolver = Resolver::new(allowing(allow), lookup);
        let pinned = resolver.resolve("hooks.example.com", reach).await?;
        Ok(pinned.addresses().map(|address| address.to_string()).collect())
    }

    #[tokio::test]
    async fn only_checked_addresses_are_returned() {
        let mixed = ["127.0.0.1", "1.1.1.1", "::ffff:10.0.0.1", "10.1.2.3"];
        let (public, listed) = (Reach::PublicOrListed, Reach::Listed);
        assert_eq!(resolved(&[], public, &mixed).await.unwrap(), ["1.1.1.1"]);
        assert_eq!(resolved(&["10.0.0.0/8"], listed, &mixed).await.unwrap(), ["::ffff:10.0.0.1", "10.1.2.3"]);
        assert_eq!(resolved(&["hooks.example.com"], listed, &mixed).await.unwrap(), mixed);
        let refused = resolved(&[], public, &["127.0.0.1", "fe80::1"]).await;
        assert!(matches!(&refused, Err(Error::Refused { .. })), "{refused:?}");
        assert!(!refused.unwrap_err().to_string().contains("127"));
        assert!(matches!(resolved(&[], listed, &mixed).await, Err(Error::Refused { .. })));
        assert!(matches!(resolved(&[], public, &[]).await, Err(Error::NotFound { .. })));
    }

    #[tokio::test]
    async fn a_connection_goes_to_the_first_address_that_accepts_it_without_another_lookup() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        // Nothing listens at the first one.
        let lookup = fixed(vec!["127.0.0.2".parse().unwrap(), address.ip()]);
        let resolver = Resolver::new(allowing(&["127.0.0.0/8"]), Arc::clone(&lookup) as Arc<dyn Lookup>);
        let pinned = resolver.resolve("server.test", Reach::Listed).await.unwrap();
        let stream = pinned.connect(address.port()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert_eq!(lookup.1.load(Ordering::SeqCst), 1);
    }

    proptest! {
        #[test]
        fn exactly_the_permitted_addresses_are_returned_in_their_order(
            addresses in prop::collection::vec(any::<IpAddr>(), 0..8),
            listed in prop::collection::vec(any::<IpAddr>(), 0..3),
            plain: bool,
        ) {
            let rules = allowing(&listed.iter().chain(addresses.first()).collect::<Vec<_>>());
            let reach = if plain { Reach::Listed } else { Reach::PublicOrListed };
            let resolver = Resolver::new(Arc::clone(&rules), fixed(addresses.clone()));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let pinned = runtime.block_on(resolver.resolve("x.test", reach));
            let expected: Vec<IpAddr> =
                addresses.into_iter().filter(|address| rules.permits("x.test", *address, reach)).collect();
            let found: Vec<IpAddr> = pinned.iter().flat_map(PinnedAddresses::addresses).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
