//! What can go wrong with the network.

use std::{io, net::Ipv4Addr};

use skep_api::{ErrorCode, ErrorKind, Failure};

use crate::Subnet;

/// What can go wrong with the network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refused a change of the links.
    #[error("{what}: {source}")]
    Link {
        /// What was tried.
        what: String,
        /// The cause.
        source: Box<rtnetlink::Error>,
    },
    /// There is no link of that name.
    #[error("there is no link `{0}` in the namespace")]
    NoLink(String),
    /// The packet filter was not loaded.
    #[error("the packet filter was not loaded: {0}; it needs `nft` (apt-get install nftables)")]
    Filter(String),
    /// The namespace exists already.
    #[error("the network namespace `{0}` exists; remove what a crash left: `skep doctor --clean`")]
    Exists(String),
    /// A text that is no subnet for VMs.
    #[error(
        "`{0}` is no subnet for VMs; write the first address and a prefix length of 8 to 29: `10.77.0.0/16`"
    )]
    NotASubnet(String),
    /// All addresses are in use.
    #[error("all addresses of {0} are in use; end a VM first")]
    NoAddress(Subnet),
    /// The address is no VM's any more.
    #[error("the VM at {0} has ended")]
    Gone(Ipv4Addr),
    /// The namespace's thread is gone.
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

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. } | Self::Link { .. } | Self::NoLink(_) | Self::ThreadGone => ErrorCode::Internal,
            Self::Filter(_) | Self::Exists(_) => ErrorCode::SwarmUnavailable,
            Self::NotASubnet(_) => ErrorCode::InvalidValue,
            Self::NoAddress(_) => ErrorCode::NoCapacity,
            Self::Gone(_) => ErrorCode::UnknownVm,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
