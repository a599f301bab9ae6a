//! A server in the process of the test, on a free port, with its store in a temporary folder.

mod events;
pub mod faults;
mod tickets;
mod vms;

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use skep_accounts::{KeySecret, scopes_of, session_host};
use skep_api::{AccountId, Environment, Role, Scope};
use skep_client::Client;
use skep_helper::HelperOrder;
use skep_server::{
    BootDefaults, Dashboard, Limits, Metrics, PublicUrl, Restart, RootRules, ServerOptions, ShutdownKind,
    StartHelper, TrustedProxies, WebhookSettings, WorkspaceDisk, ready_swarm, run, tls::Certificates,
};
use skep_store::{Account, EnsureDefaultAccount, KeyRecord, NewKey, SqliteSettings, SqliteStore, Store};
use skep_workspace::git::GitGrants;
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

pub use self::{
    events::{Event, Follower},
    vms::{booted, receipt},
};
use crate::assert_names_no_route;
pub use crate::{eventually, process::is_alive, receiver};

/// Git starts this test binary as a helper, as it would start `skep`. Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static GIT_HELPER_ENTRY: extern "C" fn() = {
    extern "C" fn answer() {
        if let Some(status) = skep_workspace::git::serve_git_callback() {
            std::process::exit(status.into());
        }
    }
    answer
};

/// A running server, which stops when it is dropped.
pub struct Skep {
    pub address: SocketAddr,
    /// The address of the API for VMs.
    pub vm_address: SocketAddr,
    /// The address at which metrics are served without a key.
    pub metrics_address: SocketAddr,
    pub store: Arc<dyn Store>,
    pub account: Account,
    /// A key with all scopes.
    pub admin: String,
    http: reqwest::Client,
    pub stop: Option<oneshot::Sender<ShutdownKind>>,
    pub serving: Option<JoinHandle<Result<(), skep_server::Error>>>,
    pub data: Arc<TempDir>,
}

/// Options of a server that a test may change.
pub struct Options {
    pub limits: Limits,
    pub proxies: TrustedProxies,
    pub tls: Option<Certificates>,
    pub git_allow: Vec<String>,
    pub egress_deny: Vec<String>,
    pub git: GitGrants,
    pub restart: Restart,
    pub webhooks: WebhookSettings,
    pub public_url: Option<PublicUrl>,
    pub dashboard: Option<Dashboard>,
    /// How long the store waits for a database that another connection has locked.
    pub busy_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // All tests share one address, which would reach the default limit.
        let limits = Limits { failed_auth_limit: "100000/s".parse().unwrap(), ..Limits::default() };
        let restart: Restart = Arc::new(|| Box::pin(async { Ok(()) }));
        let webhooks = WebhookSettings::default();
        let (proxies, git) = (TrustedProxies::default(), GitGrants::default());
        let (tls, public_url, dashboard) = (None, None, None);
        // That of the product: a commit of another process may take longer than some milliseconds.
        let busy_timeout = Duration::from_secs(5);
        let (git_allow, egress_deny) = (Vec::new(), Vec::new());
        Self {
            limits,
            proxies,
            tls,
            git_allow,
            egress_deny,
            git,
            restart,
            webhooks,
            public_url,
            dashboard,
            busy_timeout,
        }
    }
}

/// Runs helpers in this process: their programs are confined by the same fences, but without the `noexec` mounts.
fn helper(workspaces: std::path::PathBuf, git: GitGrants) -> StartHelper {
    Arc::new(move |kind| {
        let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        let roots = vec![workspaces.clone()];
        let (env, git) = ([path].into(), git.clone());
        let order = HelperOrder { kind, roots, scratch: Vec::new(), env, groups: None, git };
        Box::pin(async move {
            let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
            tokio::spawn(skep_helper::serve(theirs, order));
            Ok(ours)
        })
    })
}

async fn open_store(data: &TempDir, metrics: &Metrics, busy_timeout: Duration) -> Arc<dyn Store> {
    let settings = SqliteSettings {
        observer: Arc::new(metrics.clone()),
        busy_timeout,
        ..SqliteSettings::at(data.path().join("skep.db"))
    };
    Arc::new(SqliteStore::open(settings).await.unwrap())
}

async fn default_account(data: &TempDir, store: &dyn Store) -> Account {
    let root = data.path().join("workspaces/default");
    std::fs::create_dir_all(&root).unwrap();
    let command = EnsureDefaultAccount { roots: vec![root.display().to_string()], at: Timestamp::now() };
    store.ensure_default_account(command).await.unwrap()
}

impl Skep {
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub async fn start_with(options: Options) -> Self {
        Self::start_on(tempfile::tempdir().unwrap(), options).await
    }

    /// Starts a server on an existing data directory.
    pub async fn start_on(data: TempDir, options: Options) -> Self {
        Self::start_in(Arc::new(data), options).await
    }

    /// Starts a second server on the same data directory, as during a restart.
    pub async fn start_beside(&self) -> Self {
        Self::start_in(Arc::clone(&self.data), Options::default()).await
    }

    async fn start_in(data: Arc<TempDir>, options: Options) -> Self {
        faults::watch();
        let Options { limits, proxies, tls, git_allow, git, restart, webhooks, .. } = options;
        let Options { egress_deny, public_url, dashboard, busy_timeout, .. } = options;
        let metrics = Metrics::default();
        let store = open_store(&data, &metrics, busy_timeout).await;
        let account = default_account(&data, &*store).await;
        let [listener, vm_listener, metrics_listener] =
            [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [address, vm_address, metrics_address] =
            [&listener, &vm_listener, &metrics_listener].map(|listener| listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<ShutdownKind>();
        let order = ServerOptions {
            listener,
            vm_listener: Some(vm_listener),
            store: Arc::clone(&store),
            swarm: ready_swarm(Err("these tests have none".to_owned())),
            helper: helper(data.path().join("workspaces"), git),
            restart,
            data_dir: data.path().to_owned(),
            roots: RootRules::new(data.path()).unwrap(),
            workspace_disk: WorkspaceDisk::new(Arc::clone(&store)),
            boot: BootDefaults { max_vms: 1_000, ttl: None },
            metrics,
            metrics_listener: Some(metrics_listener),
            tls,
            proxies,
            public_url,
            dashboard,
            limits,
            git_allow,
            egress_deny,
            webhooks,
        };
        let serving = tokio::spawn(run(order, async move { stopped.await.unwrap_or(ShutdownKind::Final) }));
        let mut skep = Self {
            address,
            vm_address,
            metrics_address,
            store,
            account,
            admin: String::new(),
            http: http_client(),
            stop: Some(stop),
            serving: Some(serving),
            data,
        };
        skep.admin = skep.key(&scopes_of(Role::Admin, "default")).await.0;
        skep
    }

    /// A path in the workspace.
    pub fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.account.roots[0])
    }

    /// A new key with these scopes, and its record.
    pub async fn key(&self, scopes: &[Scope]) -> (String, KeyRecord) {
        self.key_until(scopes, None).await
    }

    pub async fn key_until(&self, scopes: &[Scope], expires_at: Option<Timestamp>) -> (String, KeyRecord) {
        self.new_key(self.account.id, scopes, expires_at).await
    }

    /// Creates another account, without roots and keys.
    pub async fn other_account(&self, name: &str) -> AccountId {
        let id = AccountId::generate();
        let database = rusqlite::Connection::open(self.data.path().join("skep.db")).unwrap();
        let insert =
            "INSERT INTO accounts (id, name, roots, allowed_ips, created_at) VALUES (?1, ?2, '[]', '[]', 0)";
        database.execute(insert, [&id.to_string(), name]).unwrap();
        id
    }

    /// Creates a key of another account.
    pub async fn key_of(&self, account: &AccountId, scopes: &[Scope]) -> String {
        self.new_key(*account, scopes, None).await.0
    }

    async fn new_key(
        &self,
        account: AccountId,
        scopes: &[Scope],
        expires_at: Option<Timestamp>,
    ) -> (String, KeyRecord) {
        let id = skep_api::KeyId::generate().to_string();
        let mut random = [0; 32];
        random[..26].copy_from_slice(&id.as_bytes()[4..]);
        let secret = KeySecret::from_random(Environment::Test, random);
        let record = self.store.create_key(NewKey {
            account,
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

    /// The client of the API with this key.
    pub fn client(&self, key: &str) -> Client {
        Client::new(&format!("http://{}", self.address), Some(key)).unwrap()
    }

    /// A request without a key.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.address))
    }

    /// A request with the admin key.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(&self.admin)
    }

    /// The `Host` at which sessions of a key exist.
    pub fn session_host(&self, key: &str) -> String {
        let key = KeySecret::parse(key).unwrap();
        format!("{}:{}", session_host(&key.hash()), self.address.port())
    }

    /// A request that creates a session of a key, at its host.
    pub fn log_in(&self, key: &str) -> RequestBuilder {
        self.bare(Method::POST, "/api/session").bearer_auth(key).header("host", self.session_host(key))
    }

    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &str) -> Response {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        request.body(body.to_owned()).send().await.unwrap()
    }

    /// Stops the server and returns its data directory.
    pub async fn end(mut self) -> TempDir {
        self.stop();
        self.serving.take().unwrap().await.unwrap().unwrap();
        let data = std::mem::replace(&mut self.data, Arc::new(tempfile::tempdir().unwrap()));
        Arc::into_inner(data).unwrap()
    }

    /// Asks the server to stop, without waiting.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }
}

impl Drop for Skep {
    fn drop(&mut self) {
        let faults = faults::unexpected();
        assert!(faults.is_empty() || std::thread::panicking(), "the server answered 500: {faults:#?}");
    }
}

fn http_client() -> reqwest::Client {
    // Fails in all tests but the first, because the provider is global.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// The answer to a request without a streamed body, once the store is available: the health check is refused where a
/// write takes longer than two seconds.
pub async fn answered(request: RequestBuilder) -> Response {
    let mut answer = None;
    eventually("an available store", async || {
        let last = request.try_clone().unwrap().send().await.unwrap();
        let is_refused = last.headers().get("skep-error").is_some_and(|code| code == "store_unavailable");
        answer = Some(last);
        !is_refused
    })
    .await;
    answer.unwrap()
}

/// The answer of a call that succeeds.
pub async fn done(request: RequestBuilder, status: u16) -> Value {
    let answer = request.send().await.unwrap();
    let found = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(found, status, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The content of a refusal whose shape was checked.
pub struct Refused {
    pub status: u16,
    pub code: String,
    pub message: String,
}

/// Checks that an answer is a refusal in the documented shape.
pub async fn refused(response: Response) -> Refused {
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
    let message = fields["message"].as_str().unwrap().to_owned();
    assert_names_no_route(&code, &message);
    Refused { status: status.as_u16(), code, message }
}
