//! The server's TLS certificate: where it comes from, and how a changed one is picked up.
//!
//! ```text
//! files            the keeper reads --tls-cert and --tls-key, hands the bytes to the server over their socket pair
//! self-signed      the server creates it in its part of the data directory
//! ```

use std::{net::IpAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use skep_keeper_protocol::{ServerEnd, TlsPair};
use skep_server::tls::{self, Certificates, Pem, self_signed};

use crate::settings::{Settings, TlsSource};

/// How often the certificate files are checked for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a self-signed certificate is checked for renewal.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The certificate in use, and the source of its successors.
pub(crate) struct Tls {
    pub(crate) certificates: Certificates,
    source: Source,
}

enum Source {
    Keeper(ServerEnd, PairPaths, Editions),
    SelfSigned(PathBuf, Vec<String>),
}

/// Paths of the pair, for messages.
#[derive(Clone)]
struct PairPaths {
    certificate: PathBuf,
    key: PathBuf,
}

/// Editions of the pair: the last received one, and the one in use (they differ if the last one was invalid).
struct Editions {
    seen: u64,
    serving: u64,
}

/// The folder of the self-signed certificate.
pub(crate) fn self_signed_dir(settings: &Settings) -> PathBuf {
    settings.server_dir().join("tls")
}

impl Tls {
    /// Loads the certificate that the settings name; `None` for plain text.
    ///
    /// # Errors
    /// A file cannot be read or used; the message names it.
    pub(crate) async fn of(settings: &Settings, keeper: ServerEnd) -> anyhow::Result<Option<Self>> {
        match settings.transport.tls_source()? {
            TlsSource::PlainText => Ok(None),
            TlsSource::SelfSigned => load_self_signed(settings).map(Some),
            TlsSource::Files { certificate, key } => {
                let names = PairPaths { certificate, key };
                let (certificates, editions) = names.load_first(keeper.tls(0, 0).await?)?;
                Ok(Some(Self { certificates, source: Source::Keeper(keeper, names, editions) }))
            }
        }
    }

    /// Picks up changed certificates until the server ends.
    pub(crate) async fn follow(self) {
        let Self { certificates, source } = self;
        match source {
            Source::SelfSigned(folder, names) => renew(&folder, &names, &certificates).await,
            Source::Keeper(keeper, names, mut editions) => {
                // Fails only when the keeper is gone, and then the server ends too.
                while let Ok(newer) = keeper.tls(editions.seen, editions.serving).await {
                    names.replace(newer, &certificates, &mut editions);
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }
}

impl PairPaths {
    fn load_first(&self, pair: Option<TlsPair>) -> anyhow::Result<(Certificates, Editions)> {
        let pair = pair.context("the keeper has no certificate")?;
        let edition = pair.edition;
        let certificates =
            Certificates::new(&pem(pair)).map_err(|error| anyhow::anyhow!(self.describe(&error)))?;
        let expires_at = certificates.expires_at();
        tracing::info!(%expires_at, "certificate {}, valid until {expires_at}", self.certificate.display());
        Ok((certificates, Editions { seen: edition, serving: edition }))
    }

    fn replace(&self, newer: Option<TlsPair>, certificates: &Certificates, editions: &mut Editions) {
        let Some(pair) = newer else { return };
        editions.seen = pair.edition;
        match certificates.replace(&pem(pair)) {
            Ok(()) => {
                editions.serving = editions.seen;
                let expires_at = certificates.expires_at();
                tracing::info!(%expires_at, "a new certificate is shown from now on, until {expires_at}");
            }
            Err(error) => {
                let why = self.describe(&error);
                tracing::error!(why, "the new certificate is refused, and the old one goes on: {why}");
            }
        }
    }

    /// The error, prefixed with the path of the file at fault.
    fn describe(&self, error: &tls::Error) -> String {
        let (certificate, key) = (self.certificate.display(), self.key.display());
        match error {
            tls::Error::Certificate(_) => format!("{certificate}: {error}"),
            tls::Error::Key(_) => format!("{key}: {error}"),
            _ => format!("{certificate} and {key}: {error}"),
        }
    }
}

fn pem(pair: TlsPair) -> Pem {
    Pem { certificate: pair.certificate, key: pair.key }
}

fn load_self_signed(settings: &Settings) -> anyhow::Result<Tls> {
    let folder = self_signed_dir(settings);
    let names = certificate_names(settings);
    let certificates = Certificates::new(&self_signed::ensure(&folder, &names, Timestamp::now())?)?;
    let (fingerprint, file) = (certificates.fingerprint(), self_signed::certificate_file(&folder));
    let file = file.display();
    tracing::info!(
        fingerprint,
        "self-signed certificate for {}, SHA-256 {fingerprint}; clients trust it by its file {file}: \
         SKEP_CA_FILE={file}, or `curl --cacert {file}`",
        names.join(", ")
    );
    Ok(Tls { certificates, source: Source::SelfSigned(folder, names) })
}

/// The names for which the self-signed certificate is valid: this machine's, and the listen address unless it is
/// unspecified.
fn certificate_names(settings: &Settings) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy().to_ascii_lowercase();
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'))
    };
    if is_name(&host) && !names.contains(&host) {
        names.push(host);
    }
    let address: IpAddr = settings.listen.ip().to_canonical();
    if !address.is_unspecified() && !names.contains(&address.to_string()) {
        names.push(address.to_string());
    }
    names
}

async fn renew(folder: &std::path::Path, names: &[String], certificates: &Certificates) {
    loop {
        tokio::time::sleep(RENEWAL_CHECK_INTERVAL).await;
        let before = certificates.fingerprint();
        let renewed = self_signed::ensure(folder, names, Timestamp::now()).map_err(anyhow::Error::from);
        match renewed.and_then(|pem| Ok(certificates.replace(&pem)?)) {
            Ok(()) if certificates.fingerprint() != before => {
                let fingerprint = certificates.fingerprint();
                tracing::warn!(fingerprint, "the self-signed certificate was renewed, SHA-256 {fingerprint}");
            }
            Ok(()) => {}
            Err(error) => tracing::error!("the self-signed certificate could not be renewed: {error:#}"),
        }
    }
}
