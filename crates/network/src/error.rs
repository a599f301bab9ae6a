//! The errors of the network.

use std::{io, net::Ipv4Addr};

use skep_api::{ErrorCode, Failure};

use crate::Subnet;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// A netlink request failed.
    #[error("{what}: {source}")]
    Link { what: String, source: Box<rtnetlink::Error> },
    #[error("there is no link `{0}` in the namespace")]
    NoLink(String),
    #[error("the packet filter was not loaded: {0}; it needs `nft` (apt-get install nftables)")]
    Filter(String),
    #[error("the network namespace `{0}` exists; if a crash left it, remove it: `skep doctor --clean`")]
    NamespaceExists(String),
    #[error(
        "`{0}` is not a valid subnet for VMs; write the first address and a prefix length of 8 to 29: `10.77.0.0/16`"
    )]
    InvalidSubnet(String),
    #[error("all addresses of {0} are in use; end a VM first")]
    NoAddress(Subnet),
    /// The address does not belong to a VM any more.
    #[error("the VM at {0} has ended")]
    PortRemoved(Ipv4Addr),
    #[error("{0} is no address of a VM in this network; the setting `subnet` may have changed")]
    ForeignAddress(Ipv4Addr),
    #[error("another VM has the address {0}")]
    AddressTaken(Ipv4Addr),
    /// The network thread has ended.
    #[error("the network has been closed")]
    ThreadGone,
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }

    pub(crate) fn link(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        move |source| Self::Link { what, source: Box::new(source) }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. } | Self::Link { .. } | Self::NoLink(_) | Self::ThreadGone => ErrorCode::Internal,
            Self::Filter(_) | Self::NamespaceExists(_) => ErrorCode::SwarmUnavailable,
            Self::InvalidSubnet(_) => ErrorCode::InvalidValue,
            Self::NoAddress(_) | Self::ForeignAddress(_) | Self::AddressTaken(_) => ErrorCode::NoCapacity,
            Self::PortRemoved(_) => ErrorCode::UnknownVm,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
