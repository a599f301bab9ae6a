//! Name resolution.

use std::{future::Future, io, net::IpAddr, pin::Pin};

/// The future of [`Lookup::look_up`].
pub type LookupFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Resolves names, without a check of their addresses.
#[warn(missing_docs)]
pub trait Lookup: Send + Sync + 'static {
    /// Returns the current addresses of a name.
    fn look_up<'a>(&'a self, host: &'a str) -> LookupFuture<'a>;
}

/// The resolver of the operating system. It also accepts addresses, in any spelling that `getaddrinfo` knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn look_up<'a>(&'a self, host: &'a str) -> LookupFuture<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
