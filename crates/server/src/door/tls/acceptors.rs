//! Does TLS handshakes.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;

use super::{Certificates, Error};

/// The names of the protocols that are negotiated (RFC 7301).
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Does TLS handshakes that offer HTTP/2, and ones that do not.
#[derive(Clone)]
pub(crate) struct TlsAcceptors {
    with_http2: TlsAcceptor,
    only_http1: TlsAcceptor,
}

impl TlsAcceptors {
    /// # Errors
    /// See [`Certificates::server_config`].
    pub(crate) fn new(certificates: &Certificates) -> Result<Self, Error> {
        let offering = |protocols: &[&[u8]]| {
            Ok::<_, Error>(TlsAcceptor::from(Arc::new(certificates.server_config(protocols)?)))
        };
        Ok(Self { with_http2: offering(&[HTTP2, HTTP1])?, only_http1: offering(&[HTTP1])? })
    }

    pub(crate) fn offering(&self, http2: bool) -> &TlsAcceptor {
        if http2 { &self.with_http2 } else { &self.only_http1 }
    }
}
