//! A git host over https, with git-lfs storage, that requires a token.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, Method, Request, StatusCode, Uri, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use data_encoding::BASE64;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::{git, remotes::backend};

/// The credentials that the host accepts.
pub(super) const USER: &str = "x-access-token";
pub(super) const TOKEN: &str = "a-token-of-the-test";

/// The host, which requires the token.
pub(super) struct Host {
    pub(super) address: SocketAddr,
    pub(super) projects: TempDir,
    pub(super) large_files: Arc<LargeFiles>,
}

/// The stored large files, and the recorded requests.
#[derive(Default)]
pub(super) struct LargeFiles {
    base: Mutex<String>,
    pub(super) objects: Mutex<HashMap<String, Bytes>>,
    pub(super) requests: AtomicUsize,
    pub(super) unauthorized: AtomicUsize,
    /// Requests with the header `x-attack`.
    pub(super) attacked: AtomicUsize,
}

impl Host {
    /// Starts a host. Returns it and the file with the certificate of its authority.
    pub(super) async fn start() -> (Self, PathBuf) {
        let projects = tempfile::tempdir().unwrap();
        let authorities = projects.path().join("authorities.pem");
        let (config, authority) = certificate();
        std::fs::write(&authorities, authority).unwrap();
        let large = Arc::<LargeFiles>::default();
        let folder = projects.path().display().to_string();
        let router = Router::new()
            .route("/x.git/info/lfs/objects/batch", post(batch))
            .route("/large/{oid}", get(download).put(upload))
            .fallback(async move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
                backend(folder, method, uri, headers, body).await
            })
            .layer(from_fn_with_state(Arc::clone(&large), require_token))
            .with_state(Arc::clone(&large));
        let address = serve_tls(config, router).await;
        *large.base.lock().unwrap() = format!("https://{address}");
        (Self { address, projects, large_files: large }, authorities)
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}/x.git", self.address)
    }

    /// Adds this repository to the host.
    pub(super) fn keep(&self, path: &str) {
        let kept = self.projects.path().join("x.git");
        git(path, &["clone", "-q", "--bare", path, kept.to_str().unwrap()]);
        git(kept, &["config", "http.receivepack", "true"]);
    }
}

/// A certificate for this machine, and the certificate of its authority.
fn certificate() -> (ServerConfig, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let shown = params.signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    (builder.with_single_cert(vec![shown.der().clone()], key).unwrap(), authority.pem())
}

/// Serves a router under TLS. Returns the address.
async fn serve_tls(config: ServerConfig, router: Router) -> SocketAddr {
    let inner = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    inner.set_nonblocking(true).unwrap();
    let to = inner.local_addr().unwrap();
    tokio::spawn(async move {
        axum_server::from_tcp(inner).unwrap().serve(router.into_make_service()).await.unwrap();
    });
    let outer = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = outer.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = outer.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(to).await?;
                copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    address
}

async fn require_token(
    State(large): State<Arc<LargeFiles>>,
    request: Request<axum::body::Body>,
    next: Next,
) -> Response {
    if request.headers().contains_key("x-attack") {
        large.attacked.fetch_add(1, Ordering::Relaxed);
    }
    let expected = format!("Basic {}", BASE64.encode(format!("{USER}:{TOKEN}").as_bytes()));
    let authorized =
        request.headers().get(AUTHORIZATION).is_some_and(|value| value.as_bytes() == expected.as_bytes());
    // URLs that `batch` returned carry their own token in the name.
    if authorized || request.uri().path().starts_with("/large/") {
        return next.run(request).await;
    }
    large.unauthorized.fetch_add(1, Ordering::Relaxed);
    (StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic realm=\"test\"")]).into_response()
}

/// Returns the URLs of large files (the batch API of git-lfs).
async fn batch(State(large): State<Arc<LargeFiles>>, Json(wanted): Json<Value>) -> impl IntoResponse {
    large.requests.fetch_add(1, Ordering::Relaxed);
    let operation = wanted["operation"].as_str().unwrap();
    let (known, base) = (large.objects.lock().unwrap(), large.base.lock().unwrap());
    let objects = wanted["objects"].as_array().unwrap().iter().map(|object| {
        let oid = object["oid"].as_str().unwrap();
        let mut answer = json!({"oid": oid, "size": object["size"], "authenticated": true});
        match (operation, known.contains_key(oid)) {
            ("upload", true) => {}
            ("download", false) => answer["error"] = json!({"code": 404, "message": "not kept here"}),
            _ => answer["actions"] = json!({operation: {"href": format!("{}/large/{oid}", *base)}}),
        }
        answer
    });
    let objects: Vec<Value> = objects.collect();
    let kind = [("content-type", "application/vnd.git-lfs+json")];
    (kind, json!({"transfer": "basic", "objects": objects}).to_string())
}

async fn download(State(large): State<Arc<LargeFiles>>, Path(oid): Path<String>) -> Response {
    match large.objects.lock().unwrap().get(&oid) {
        Some(content) => content.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn upload(State(large): State<Arc<LargeFiles>>, Path(oid): Path<String>, content: Bytes) -> StatusCode {
    large.objects.lock().unwrap().insert(oid, content);
    StatusCode::OK
}
