//! The certificate that new connections are shown.

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

use super::pem::{Checked, Error, Pem};

/// How long before its end a certificate is warned of.
const SOON: SignedDuration = SignedDuration::from_hours(14 * 24);
/// How often its end is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(12 * 3600);

/// The certificate that new connections are shown. Cheap to clone; all clones show the same.
#[derive(Debug, Clone)]
pub struct Certificates(Arc<Shown>);

#[derive(Debug)]
struct Shown {
    provider: Arc<CryptoProvider>,
    now: RwLock<Checked>,
}

impl Certificates {
    /// Shows this one.
    ///
    /// # Errors
    /// It cannot be read, or its key is another's. One that has expired is no error: it is warned of.
    pub fn new(pem: &Pem) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let now = RwLock::new(Checked::new(pem, &provider)?);
        Ok(Self(Arc::new(Shown { provider, now })))
    }

    /// Shows another from now on. Connections that are open go on as they are.
    ///
    /// # Errors
    /// It cannot be used, and the old one goes on being shown.
    pub fn replace(&self, pem: &Pem) -> Result<(), Error> {
        let checked = Checked::new(pem, &self.0.provider)?;
        *self.0.now.write().unwrap_or_else(PoisonError::into_inner) = checked;
        warn_if_expired(self.expires_at());
        Ok(())
    }

    /// When the one that is shown expires.
    pub fn expires_at(&self) -> Timestamp {
        self.0.now().expires_at
    }

    /// Its SHA-256, as `AB:CD:...`.
    pub fn fingerprint(&self) -> String {
        self.0.now().fingerprint
    }

    /// How TLS is spoken: versions 1.2 and 1.3, HTTP/2 before HTTP/1.1.
    pub(crate) fn server_config(&self) -> Result<ServerConfig, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.0.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Setup(error.to_string()))?;
        let resolver: Arc<Shown> = Arc::clone(&self.0);
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl Shown {
    fn now(&self) -> Checked {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now().pair)
    }
}

/// Warns now and twice a day while the certificate expires soon or has expired. Never ends.
pub(crate) async fn warn_of_expiry(certificates: Option<Certificates>) -> std::convert::Infallible {
    loop {
        if let Some(certificates) = &certificates {
            warn_if_expired(certificates.expires_at());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn warn_if_expired(expires_at: Timestamp) {
    let left = expires_at.duration_since(Timestamp::now());
    if left <= SignedDuration::ZERO {
        tracing::warn!(%expires_at, "the TLS certificate has expired at {expires_at}: clients refuse it; renew it");
    } else if left < SOON {
        tracing::warn!(%expires_at, "the TLS certificate expires at {expires_at}; renew it");
    }
}
