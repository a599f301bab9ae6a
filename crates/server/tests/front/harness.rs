//! A real server on a free port, with its store in a folder of its own.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use jiff::Timestamp;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use skep_accounts::{KeySecret, scopes_of};
use skep_api::{Environment, Role, Scope};
use skep_server::{BootDefaults, Limits, ServerOrder, TrustedProxies, run, tls::Certificates};
use skep_store::{Account, EnsureDefaultAccount, KeyRecord, NewKey, SqliteSettings, SqliteStore, Store};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::faults;

/// A server; it ends when dropped.
pub(crate) struct Skep {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) account: Account,
    /// A key with all scopes.
    pub(crate) admin: String,
    http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) serving: Option<JoinHandle<Result<(), skep_server::Error>>>,
    _data: TempDir,
}

/// How a server under test differs from any other.
pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) proxies: TrustedProxies,
    pub(crate) tls: Option<Certificates>,
}

impl Default for Options {
    fn default() -> Self {
        // All tests call from one address.
        let limits = Limits { failed_auth_limit: "100000/s".parse().unwrap(), ..Limits::default() };
        Self { limits, proxies: TrustedProxies::default(), tls: None }
    }
}

impl Skep {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        faults::watch();
        let Options { limits, proxies, tls } = options;
        let data = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(SqliteSettings::at(data.path().join("skep.db"))).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let command = EnsureDefaultAccount { roots: vec!["/srv/workspace".to_owned()], at: Timestamp::now() };
        let account = store.ensure_default_account(command).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let order = ServerOrder {
            listener,
            store: Arc::clone(&store),
            swarm: Err("these tests have none".to_owned()),
            data_dir: data.path().to_owned(),
            workspaces: data.path().join("workspaces"),
            boot: BootDefaults { max_vms: 1_000, ttl: None },
            tls,
            proxies,
            limits,
        };
        let serving = tokio::spawn(run(order, async { drop(stopped.await) }));
        let mut skep = Self {
            address,
            store,
            account,
            admin: String::new(),
            http: client(),
            stop: Some(stop),
            serving: Some(serving),
            _data: data,
        };
        skep.admin = skep.key(&scopes_of(Role::Admin, "default")).await.0;
        skep
    }

    /// A new key with these scopes, and its record.
    pub(crate) async fn key(&self, scopes: &[Scope]) -> (String, KeyRecord) {
        self.key_until(scopes, None).await
    }

    pub(crate) async fn key_until(
        &self,
        scopes: &[Scope],
        expires_at: Option<Timestamp>,
    ) -> (String, KeyRecord) {
        let id = skep_api::KeyId::generate().to_string();
        let mut random = [0; 32];
        random[..26].copy_from_slice(&id.as_bytes()[4..]);
        let secret = KeySecret::from_random(Environment::Test, random);
        let record = self.store.create_key(NewKey {
            account: self.account.id,
            name: id,
            environment: Environment::Test,
            role: None,
            scopes: scopes.to_vec(),
            vm: None,
            hash: secret.hash(),
            prefix: secret.prefix().to_owned(),
            expires_at,
            at: Timestamp::now(),
            request_id: None,
        });
        (secret.expose().to_owned(), record.await.unwrap())
    }

    /// A request without a key.
    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.address))
    }

    /// A request with the admin key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(&self.admin)
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Response {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        request.body(body.to_owned()).send().await.unwrap()
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }
}

impl Drop for Skep {
    fn drop(&mut self) {
        let faults = faults::unexpected();
        assert!(faults.is_empty() || std::thread::panicking(), "the server answered 500: {faults:#?}");
    }
}

fn client() -> reqwest::Client {
    // The first of all tests chooses.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// What a refusal says, once its shape was checked.
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Checks that an answer is a refusal of exactly the promised shape.
pub(crate) async fn refused(response: Response) -> Refused {
    let status = response.status();
    let header = |name: &str| {
        let value = response.headers().get(name).unwrap_or_else(|| panic!("{status} without {name}"));
        value.to_str().unwrap().to_owned()
    };
    assert!(status.is_client_error() || status.is_server_error(), "{status} is no refusal");
    let code = header("skep-error");
    assert!(!header("x-request-id").is_empty());
    assert_eq!(header("skep-version"), "1");
    assert_eq!(header("content-type"), "application/json");
    if status == StatusCode::SERVICE_UNAVAILABLE {
        header("retry-after");
    }
    let body: Value = response.json().await.unwrap();
    let fields = body.as_object().unwrap();
    assert_eq!(fields.len(), 2, "{body}");
    assert_eq!(fields["error"], status.canonical_reason().unwrap());
    Refused { status: status.as_u16(), code, message: fields["message"].as_str().unwrap().to_owned() }
}
