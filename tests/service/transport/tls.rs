//! TLS: negotiation, and replacing the certificate.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use skep_server::{
    Limits,
    tls::{Certificates, Pem},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::wire::{LAST, ROOT, answer, connect, exchange};
use crate::harness::{Options, Skep, eventually};

/// A certificate for this machine that expires in this year.
pub(crate) fn certificate(until: i32) -> Pem {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    Pem { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

async fn serving(pem: &Pem) -> (Skep, Certificates) {
    let certificates = Certificates::new(pem).unwrap();
    let skep = Skep::start_with(Options { tls: Some(certificates.clone()), ..Options::default() }).await;
    (skep, certificates)
}

/// Connects and trusts only this certificate.
pub(super) async fn trusting(
    skep: &Skep,
    pem: &Pem,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.certificate.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, connect(skep.address).await).await
}

async fn is_served(stream: &mut TlsStream<TcpStream>) {
    stream.write_all(ROOT.as_bytes()).await.unwrap();
    let response = answer(stream).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}

#[tokio::test]
async fn both_kinds_of_http_are_spoken_and_the_newer_one_is_preferred() {
    let pem = certificate(2100);
    let (skep, _) = serving(&pem).await;
    for (offered, chosen) in
        [(&["http/1.1", "h2"][..], Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let mut stream = trusting(&skep, &pem, offered).await.unwrap();
        let spoken =
            stream.get_ref().1.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        assert_eq!(spoken.as_deref(), chosen);
        match chosen {
            Some("h2") => super::http2::is_served(stream).await,
            _ => is_served(&mut stream).await,
        }
    }
    trusting(&skep, &pem, &["gopher"]).await.unwrap_err();
}

#[tokio::test]
async fn one_connection_more_than_may_speak_http2_gets_http1() {
    let pem = certificate(2100);
    let limits = Limits { max_http2_connections_per_address: 1, ..Limits::default() };
    let tls = Some(Certificates::new(&pem).unwrap());
    let skep = Skep::start_with(Options { tls, limits, ..Options::default() }).await;
    let spoken = |stream: &TlsStream<TcpStream>| stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let both = ["h2", "http/1.1"];
    let first = trusting(&skep, &pem, &both).await.unwrap();
    assert_eq!(spoken(&first).as_deref(), Some(&b"h2"[..]));
    let mut second = trusting(&skep, &pem, &both).await.unwrap();
    assert_eq!(spoken(&second).as_deref(), Some(&b"http/1.1"[..]));
    is_served(&mut second).await;
    // A connection that negotiated HTTP/1.1 is not counted.
    drop(first);
    let is_room = async || {
        let stream = trusting(&skep, &pem, &both).await.unwrap();
        spoken(&stream).as_deref() == Some(&b"h2"[..])
    };
    eventually("room for another connection", is_room).await;
}

#[tokio::test]
async fn a_certificate_is_exchanged_while_serving() {
    let (old, new) = (certificate(2100), certificate(2100));
    let (skep, certificates) = serving(&old).await;
    let mut kept = trusting(&skep, &old, &[]).await.unwrap();
    is_served(&mut kept).await;
    certificates.replace(&new).unwrap();
    // New connections get the new certificate only.
    is_served(&mut trusting(&skep, &new, &[]).await.unwrap()).await;
    trusting(&skep, &old, &[]).await.unwrap_err();
    is_served(&mut kept).await;
}

#[tokio::test]
async fn an_invalid_certificate_is_refused_and_the_old_one_stays_in_use() {
    let (old, other) = (certificate(2100), certificate(2100));
    let (skep, certificates) = serving(&old).await;
    let with =
        |certificate: &str, key: &str| Pem { certificate: certificate.to_owned(), key: key.to_owned() };
    let cut = &other.certificate[..other.certificate.len() / 2];
    let damaged = other.certificate.replacen('M', "N", 3);
    for (what, pem, word) in [
        ("another's key", with(&other.certificate, &old.key), "belong"),
        ("no certificate", with("", &other.key), "certificate"),
        ("a certificate cut short", with(cut, &other.key), "certificate"),
        ("a damaged certificate", with(&damaged, &other.key), "certificate"),
        ("the key in place of the certificate", with(&other.key, &other.key), "BEGIN CERTIFICATE"),
        ("no key", with(&other.certificate, ""), "BEGIN PRIVATE KEY"),
        ("the certificate in place of the key", with(&other.certificate, &other.certificate), "key"),
        ("nonsense", with("nonsense", "nonsense"), "certificate"),
    ] {
        let error = certificates.replace(&pem).unwrap_err().to_string();
        assert!(error.contains(word), "{what}: {error}");
        let secret = other.key.lines().nth(1).unwrap();
        assert!(!error.contains(secret), "{what}: {error}");
        is_served(&mut trusting(&skep, &old, &[]).await.unwrap()).await;
    }
    assert!(!format!("{other:?}").contains(other.key.lines().nth(1).unwrap()));
}

#[tokio::test]
async fn an_expired_certificate_is_shown_and_its_clients_say_so() {
    let pem = certificate(2002);
    let (skep, certificates) = serving(&pem).await;
    assert!(certificates.expires_at() < jiff::Timestamp::now());
    let error = trusting(&skep, &pem, &[]).await.unwrap_err().to_string();
    assert!(error.contains("xpired"), "{error}");
}

#[tokio::test]
async fn plain_http_on_a_tls_listener_is_refused_with_403() {
    let pem = certificate(2100);
    let (skep, _) = serving(&pem).await;
    let response = exchange(&skep, LAST).await;
    assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    assert!(
        response.contains("skep-error: https_required") && response.contains("\"HTTPS required\""),
        "{response}"
    );
    for nonsense in [&b"\x16\x03\x01\0\x05hello"[..], b"\0\0\0\0", b"nonsense"] {
        let response = exchange(&skep, nonsense).await;
        assert!(!response.contains("HTTP/1.1"), "{response}");
    }
    is_served(&mut trusting(&skep, &pem, &[]).await.unwrap()).await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_to_its_end_is_given_up() {
    let mut options =
        Options { tls: Some(Certificates::new(&certificate(2100)).unwrap()), ..Options::default() };
    options.limits.header_timeout = std::time::Duration::from_millis(150);
    let skep = Skep::start_with(options).await;
    for beginning in [&b""[..], b"\x16", b"\x16\x03\x01\x02\0"] {
        assert_eq!(exchange(&skep, beginning).await, "");
    }
}
