//! Endpoints that speak TLS: whose certificates are trusted, and what is sent to those that are not.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use data_encoding::BASE64;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use ring::hmac;
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::harness::{Skep, eventually, temp_dir};

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A file with its certificate that the server's user may read, in a folder that this user may enter.
    pub(crate) fn file(&self) -> (TempDir, PathBuf) {
        self.file_in(temp_dir())
    }

    /// Like [`Self::file`], in this folder.
    pub(crate) fn file_in(&self, folder: TempDir) -> (TempDir, PathBuf) {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("ca.pem");
        fs::write(&path, self.0.pem()).unwrap();
        (folder, path)
    }

    /// The TLS configuration of a server with this name.
    pub(crate) fn for_server(&self, name: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_no_client_auth();
        builder.with_single_cert(vec![certificate.der().clone()], key).unwrap()
    }
}

/// Reads the head and the body of a request; `None` where it is incomplete because the sender was killed.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8(read[..end].to_vec()).unwrap();
            let length: usize = header(&head, "content-length").parse().unwrap();
            if read.len() >= end + 4 + length {
                return Some((head, read.split_off(end + 4)));
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

/// Answers 200, whole before the stream is dropped.
async fn accept(stream: &mut (impl AsyncWrite + Unpin)) -> Option<()> {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.flush().await.ok()
}

fn header(head: &str, name: &str) -> String {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).unwrap().1.to_owned()
}

/// The connections and requests that an endpoint received.
#[derive(Default)]
struct Received {
    connections: usize,
    /// Head and body of each request.
    requests: Vec<(String, Vec<u8>)>,
}

/// An endpoint on this machine.
struct Endpoint {
    url: String,
    came: Arc<Mutex<Received>>,
}

impl Endpoint {
    async fn new(shown: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/hook", listener.local_addr().unwrap());
        let (came, acceptor) = (Arc::<Mutex<Received>>::default(), TlsAcceptor::from(Arc::new(shown)));
        let noted = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                noted.lock().unwrap().connections += 1;
                tokio::spawn(take(acceptor.clone(), stream, Arc::clone(&noted)));
            }
        });
        Self { url, came }
    }

    fn connections(&self) -> usize {
        self.came.lock().unwrap().connections
    }

    fn requests(&self) -> Vec<(String, Vec<u8>)> {
        self.came.lock().unwrap().requests.clone()
    }
}

async fn take(acceptor: TlsAcceptor, stream: TcpStream, came: Arc<Mutex<Received>>) -> Option<()> {
    let mut stream = acceptor.accept(stream).await.ok()?;
    let read = request(&mut stream).await?;
    came.lock().unwrap().requests.push(read);
    accept(&mut stream).await
}

/// Starts a server that trusts the authorities in a file, or those of this machine.
async fn start(data_dir: TempDir, trusted: Option<&Path>) -> Skep {
    Skep::start_as(data_dir, |command| {
        command.args(["--webhook-allow", "127.0.0.1"]).env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
        if let Some(path) = trusted {
            command.env("SSL_CERT_FILE", path);
        }
    })
    .await
}

/// Sends a test event. Returns the webhook's secret, and the delivery after its first attempt.
async fn tried(skep: &Skep, endpoint: &Endpoint) -> (String, Value) {
    let made = skep.post("/api/webhooks", &json!({"url": endpoint.url})).await.ok(201);
    let path = format!("/api/webhooks/{}", made["id"].as_str().unwrap());
    let sent = skep.post(&format!("{path}/test"), &json!({})).await;
    assert!(sent.status.is_success(), "{sent:?}");
    let mut delivery = Value::Null;
    eventually("an attempt", async || {
        let list = skep.get(&format!("{path}/deliveries")).await.ok(200);
        delivery = list["deliveries"][0].clone();
        delivery["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty())
    })
    .await;
    (made["secret"].as_str().unwrap().to_owned(), delivery)
}

/// Checks that an endpoint received no request, and that the delivery has the reason.
#[track_caller]
fn is_refused(endpoint: &Endpoint, delivery: &Value, why: &str) {
    assert_ne!(delivery["state"], "delivered", "{delivery}");
    let attempt = &delivery["attempts"][0];
    assert_eq!(attempt["status"], Value::Null, "{delivery}");
    let error = attempt["error"].as_str().unwrap();
    assert!(error.contains("certificate") && error.contains(why), "{error}");
    assert!(endpoint.connections() > 0, "the control: it was tried");
    assert_eq!(endpoint.requests(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_trusted_by_the_authority_that_the_operator_names() {
    let (ours, other) = (Authority::new("ours"), Authority::new("another"));
    let (_folder, trusted) = ours.file();
    let skep = start(temp_dir(), Some(&trusted)).await;

    let endpoint = Endpoint::new(ours.for_server("127.0.0.1")).await;
    let (secret, delivery) = tried(&skep, &endpoint).await;
    assert_eq!(delivery["state"], "delivered", "{delivery}; the log of the server:\n{}", skep.log());
    let [(head, body)] = &endpoint.requests()[..] else { panic!("{:?}", endpoint.requests()) };
    let field = |name| header(head, name);
    let (id, timestamp, signature) =
        (field("webhook-id"), field("webhook-timestamp"), field("webhook-signature"));
    let key = BASE64.decode(secret.strip_prefix("whsec_").unwrap().as_bytes()).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let signature = BASE64.decode(signature.strip_prefix("v1,").unwrap().as_bytes()).unwrap();
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    assert!(hmac::verify(&key, &signed, &signature).is_ok(), "{head}");

    for (shown, why) in [
        (other.for_server("127.0.0.1"), "UnknownIssuer"),
        (ours.for_server("receiver.example.com"), "not valid for name"),
    ] {
        let endpoint = Endpoint::new(shown).await;
        let (_, delivery) = tried(&skep, &endpoint).await;
        is_refused(&endpoint, &delivery, why);
    }

    // Each start reads the file again.
    fs::write(&trusted, other.0.pem()).unwrap();
    let skep = start(skep.stop(), Some(&trusted)).await;
    let endpoint = Endpoint::new(other.for_server("127.0.0.1")).await;
    let (_, delivery) = tried(&skep, &endpoint).await;
    assert_eq!(delivery["state"], "delivered", "{delivery}; the log of the server:\n{}", skep.log());
}

/// The control of `SSL_CERT_FILE`: without it the machine's own authorities are trusted, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_not_configured_is_not_trusted() {
    let endpoint = Endpoint::new(Authority::new("ours").for_server("127.0.0.1")).await;
    let skep = start(temp_dir(), None).await;
    let (_, delivery) = tried(&skep, &endpoint).await;
    is_refused(&endpoint, &delivery, "UnknownIssuer");
}
