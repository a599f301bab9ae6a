//! Parses and checks a certificate and its private key.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};
use x509_cert::{Certificate, der::Decode};

/// A certificate with its chain, and its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The certificate, followed by its chain of issuers.
    pub certificate: String,
    /// Its private key: PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key: String,
}

/// Omits the key, so that it does not get into logs.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Why a certificate and its key cannot be used. Callers name the files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate cannot be parsed.
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
    /// The key cannot be parsed.
    #[error("the private key cannot be used: {0}")]
    Key(String),
    /// The key does not match the certificate.
    #[error("the private key does not belong to the certificate; give the two that were made together")]
    Mismatch,
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// A parsed certificate whose key matches.
#[derive(Debug, Clone)]
pub(super) struct CheckedPair {
    pub(super) pair: Arc<CertifiedKey>,
    pub(super) expires_at: Timestamp,
    pub(super) fingerprint: String,
}

impl CheckedPair {
    pub(super) fn new(pem: &Pem, provider: &CryptoProvider) -> Result<Self, Error> {
        let chain = CertificateDer::pem_slice_iter(pem.certificate.as_bytes())
            .collect::<Result<Vec<_>, pem::Error>>()
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let Some(leaf) = chain.first() else {
            return Err(Error::Certificate("it holds no `BEGIN CERTIFICATE`".to_owned()));
        };
        let fingerprint = fingerprint(leaf);
        let expires_at = expiry(leaf)?;
        let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).map_err(|error| match error {
            pem::Error::NoItemsFound => Error::Key(
                "it holds no `BEGIN PRIVATE KEY`, or an encrypted one; give it without a password".to_owned(),
            ),
            // The library's message might repeat parts of the key.
            _ => Error::Key("it is not PEM".to_owned()),
        })?;
        let signing = provider
            .key_provider
            .load_private_key(key)
            .map_err(|_| Error::Key("it is no RSA, ECDSA or Ed25519 key in a known encoding".to_owned()))?;
        let pair = CertifiedKey::new(chain, signing);
        match pair.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                return Err(Error::Mismatch);
            }
            Err(error) => return Err(Error::Certificate(error.to_string())),
        }
        Ok(Self { pair: Arc::new(pair), expires_at, fingerprint })
    }
}

/// SHA-256 of a certificate as browsers and `openssl x509 -fingerprint` show it.
fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let digest = Sha256::digest(certificate.as_ref());
    digest.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

fn expiry(certificate: &CertificateDer<'_>) -> Result<Timestamp, Error> {
    let parsed =
        Certificate::from_der(certificate.as_ref()).map_err(|error| Error::Certificate(error.to_string()))?;
    let until = parsed.tbs_certificate.validity.not_after.to_unix_duration();
    let seconds = i64::try_from(until.as_secs()).unwrap_or(i64::MAX);
    Ok(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
}
