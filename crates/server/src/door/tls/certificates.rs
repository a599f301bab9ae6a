//! The TLS certificate for new connections, which can be replaced while the server runs.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::pem::{CheckedPair, Error, Pem};

/// How long before its expiry warnings about a certificate begin.
const WARN_BEFORE: SignedDuration = SignedDuration::from_hours(14 * 24);
/// How often the expiry is checked.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(12 * 3600);

/// The certificate for new connections. Cheap to clone; clones share the certificate.
#[derive(Debug, Clone)]
pub struct Certificates(Arc<Resolver>);

#[derive(Debug)]
struct Resolver {
    provider: Arc<CryptoProvider>,
    current: RwLock<CheckedPair>,
}

impl Certificates {
    /// Starts with this certificate.
    ///
    /// # Errors
    /// The certificate cannot be parsed, or the key does not match it. An expired one is no error; it causes a warning.
    pub fn new(pem: &Pem) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let now = RwLock::new(CheckedPair::new(pem, &provider)?);
        Ok(Self(Arc::new(Resolver { provider, current: now })))
    }

    /// Uses another certificate for new connections. Open connections are not affected.
    ///
    /// # Errors
    /// The certificate cannot be used; the old one stays in use.
    pub fn replace(&self, pem: &Pem) -> Result<(), Error> {
        let checked = CheckedPair::new(pem, &self.0.provider)?;
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = checked;
        warn_if_expired(self.expires_at());
        Ok(())
    }

    /// When the current certificate expires.
    pub fn expires_at(&self) -> Timestamp {
        self.0.current().expires_at
    }

    /// The SHA-256 of the current certificate, as `AB:CD:...`.
    pub fn fingerprint(&self) -> String {
        self.0.current().fingerprint
    }

    /// The configuration of rustls: TLS 1.2 and 1.3, and these protocols (RFC 7301), the preferred one first.
    ///
    /// # Errors
    /// rustls refuses its parameters.
    pub(super) fn server_config(&self, protocols: &[&[u8]]) -> Result<ServerConfig, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.0.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Setup(error.to_string()))?;
        let resolver: Arc<Resolver> = Arc::clone(&self.0);
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

impl Resolver {
    fn current(&self) -> CheckedPair {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current().pair)
    }
}

/// Warns now and twice a day while the certificate expires soon or has expired. Never ends.
pub(crate) async fn warn_of_expiry(certificates: Option<Certificates>) -> std::convert::Infallible {
    loop {
        if let Some(certificates) = &certificates {
            warn_if_expired(certificates.expires_at());
        }
        tokio::time::sleep(EXPIRY_CHECK_INTERVAL).await;
    }
}

fn warn_if_expired(expires_at: Timestamp) {
    let left = expires_at.duration_since(Timestamp::now());
    if left <= SignedDuration::ZERO {
        tracing::warn!(%expires_at, "the TLS certificate has expired at {expires_at}: clients refuse it; renew it");
    } else if left < WARN_BEFORE {
        tracing::warn!(%expires_at, "the TLS certificate expires at {expires_at}; renew it");
    }
}
