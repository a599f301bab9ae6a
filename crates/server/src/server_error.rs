//! The error of a server that could not start, or stopped.

use std::{io, net::SocketAddr};

use skep_api::{ErrorCode, Failure};

use crate::door::tls;

/// Why a server could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not a loopback one, and would be served in plain text.
    #[error(
        "{address} is reached from other machines and would be served in plain text; give --tls-cert and --tls-key, or \
         --tls self-signed, or name the proxy in front of it by --trusted-proxy, or listen on a loopback address such \
         as 127.0.0.1:7700"
    )]
    PlainText { address: SocketAddr },
    /// The address for metrics, which need no key, is not a loopback one.
    #[error(
        "{address} is reached from other machines, and metrics are served there without a key; name a loopback address \
         such as 127.0.0.1:7701"
    )]
    MetricsAddress { address: SocketAddr },
    #[error("the listening socket failed")]
    Listener(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error(transparent)]
    Internal(Failure),
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::PlainText { .. } | Self::MetricsAddress { .. } => ErrorCode::InvalidValue,
            Self::Listener(_) | Self::Tls(_) | Self::Internal(_) => ErrorCode::Internal,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
