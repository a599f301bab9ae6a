//! Runs the HTTP server in the server process.

use std::{
    future::Future,
    io::{self, IsTerminal},
    net::TcpListener,
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use rustix::process::{Resource, getrlimit};
use skep_accounts::{DEFAULT_ACCOUNT, KeyHash, check_validity};
use skep_api::{ErrorCode, Failure, session::SessionLink};
use skep_keeper_protocol::ServerEnd;
use skep_server::{
    BootDefaults, Dashboard, Limits, Metrics, PublicUrl, Restart, RootRules, ServerOptions, ShutdownKind,
    StartHelper, SwarmReceiver, WebhookSettings, WorkspaceDisk, link_for_operator, tls::self_signed,
};
use skep_store::{EnsureAdminKey, EnsureDefaultAccount, SetAccountRoots, SqliteSettings, SqliteStore, Store};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

use crate::{
    output,
    settings::{LogFormat, Settings},
    tls::{Tls, self_signed_dir},
};

/// Upper limit of `count` of one boot if no other limit applies: a larger value is a mistake.
const MAX_BOOT_COUNT: u32 = 1_000;

/// The stored part of the admin key.
pub(crate) struct AdminKey {
    pub(crate) hash: KeyHash,
    pub(crate) prefix: String,
}

/// Bound and listening sockets.
pub(crate) struct Listeners {
    pub(crate) api: TcpListener,
    /// The API for VMs; `None` without VMs.
    pub(crate) vms: Option<TcpListener>,
    /// Metrics without a key; `None` unless the settings request them.
    pub(crate) metrics: Option<TcpListener>,
}

/// Parts of the server that depend on how it was started.
pub(crate) struct ServerParts {
    /// The swarm, or the reason why there is none.
    pub(crate) swarm: SwarmReceiver,
    pub(crate) workspace_disk: WorkspaceDisk,
    pub(crate) helper: StartHelper,
    /// Starts the server again.
    pub(crate) restart: RestartHandle,
    /// The keeper, if this server has no predecessor. Only such a server prints the startup message.
    pub(crate) without_predecessor: Option<ServerEnd>,
    /// The hash of the first admin key, for a login link on the terminal.
    pub(crate) admin_key: Option<KeyHash>,
}

/// How routes request a restart, and the state of these requests.
pub(crate) struct RestartHandle {
    pub(crate) restart: Restart,
    pub(crate) succession: watch::Receiver<RestartState>,
}

/// State of restarts by a successor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RestartState {
    /// Pending requests.
    pub(crate) pending: u32,
    /// A successor serves.
    pub(crate) granted: bool,
}

/// Restarts the server through the keeper.
pub(crate) fn restart_by_keeper(keeper: ServerEnd) -> RestartHandle {
    let (state, succession) = watch::channel(RestartState::default());
    let state = Arc::new(state);
    let restart: Restart = Arc::new(move || {
        let (keeper, state) = (keeper.clone(), Arc::clone(&state));
        Box::pin(async move {
            state.send_modify(|succession| succession.pending += 1);
            // In a task of its own: the caller may disconnect before the answer.
            let asking = tokio::spawn(async move {
                let answer = keeper.restart().await;
                state.send_modify(|succession| {
                    succession.pending -= 1;
                    succession.granted |= matches!(answer, Ok(true));
                });
                answer
            });
            asking.await.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))??;
            Ok(())
        })
    });
    RestartHandle { restart, succession }
}

/// Opens the store and ensures the account `default`, its roots and its admin key.
pub(crate) async fn open_store(
    settings: &Settings,
    admin_key: Option<AdminKey>,
    metrics: &Metrics,
) -> anyhow::Result<Arc<dyn Store>> {
    let observer = Arc::new(metrics.clone());
    let sqlite = SqliteSettings { observer, ..SqliteSettings::at(settings.store()) };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(sqlite).await?);
    let at = Timestamp::now();
    let roots = checked_roots(settings, &*store).await?;
    let account = store.ensure_default_account(EnsureDefaultAccount { roots: roots.clone(), at }).await?;
    if account.roots != roots {
        store.set_account_roots(SetAccountRoots { account: account.id, roots }).await?;
    }
    if let Some(AdminKey { hash, prefix }) = admin_key {
        store.ensure_admin_key(EnsureAdminKey { hash, prefix, at }).await?;
    }
    Ok(store)
}

/// Checks that the roots of the account `default` do not overlap those of other accounts.
async fn checked_roots(settings: &Settings, store: &dyn Store) -> anyhow::Result<Vec<String>> {
    let others = store.roots_of_other_accounts(DEFAULT_ACCOUNT).await?;
    let rules = RootRules::new(&settings.data_dir).context("the data directory cannot be read")?;
    let resolve = |root: &PathBuf| {
        let checked = rules.check(root, &others);
        let root =
            checked.context("`root`: name another by --root, or give that account another root first")?;
        root.into_os_string()
            .into_string()
            .map_err(|root| anyhow!("the root {root:?} is not UTF-8; name another"))
    };
    settings.roots().iter().map(resolve).collect()
}

/// The signal streams of SIGTERM and SIGINT. The signals no longer end the process once it listens to them.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be waited for")?,
            interrupt: signal(SignalKind::interrupt()).context("SIGINT cannot be waited for")?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Completes with the kind of the shutdown, after SIGTERM, SIGINT or `end`.
async fn shutdown(
    mut stop: StopSignals,
    mut succession: watch::Receiver<RestartState>,
    end: impl Future<Output = ()> + Send,
) -> ShutdownKind {
    tokio::select! {
        () = stop.wait() => {}
        () = end => {}
    }
    // The keeper's answer and the order to end arrive at the same time; wait until the answer is known.
    let known = succession.wait_for(|succession| succession.granted || succession.pending == 0).await;
    if known.is_ok_and(|succession| succession.granted) {
        return ShutdownKind::HandOver;
    }
    ShutdownKind::Final
}

/// Serves until SIGTERM, SIGINT, or `end`.
pub(crate) async fn serve(
    settings: &Settings,
    Listeners { api: listener, vms: vm_listener, metrics: metrics_listener }: Listeners,
    metrics: Metrics,
    store: Arc<dyn Store>,
    parts: ServerParts,
    tls: Option<Tls>,
    end: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let ServerParts { swarm, workspace_disk, helper, restart, without_predecessor, admin_key } = parts;
    let RestartHandle { restart, succession } = restart;
    let shutdown = shutdown(StopSignals::listen()?, succession, end);
    if without_predecessor.is_some() {
        let link = link_for_terminal(settings, &*store, admin_key, &listener, tls.is_some()).await;
        let no_swarm = swarm.borrow().as_ref().and_then(|swarm| swarm.as_ref().err().cloned());
        let (listener, metrics) = (&listener, metrics_listener.as_ref());
        print_startup_message(settings, listener, metrics, no_swarm.as_ref(), tls.is_some(), link)?;
    }
    let max_vms = settings.capacity.max_vms.unwrap_or(0).max(MAX_BOOT_COUNT);
    let boot = BootDefaults { max_vms, ttl: settings.default_ttl };
    let allow = settings.webhooks.webhook_allow.clone();
    let order = ServerOptions {
        listener,
        vm_listener,
        store,
        swarm,
        helper,
        restart,
        data_dir: settings.server_dir(),
        roots: RootRules::new(&settings.data_dir).context("the data directory cannot be read")?,
        workspace_disk,
        boot,
        metrics,
        metrics_listener,
        tls: tls.as_ref().map(|tls| tls.certificates.clone()),
        proxies: settings.transport.proxies(),
        public_url: settings.transport.public_url.clone(),
        dashboard: dashboard(),
        limits: limits_within_descriptors(settings),
        git_allow: settings.git_allow.clone(),
        egress_deny: settings.egress.egress_deny.clone(),
        webhooks: WebhookSettings { allow, ..WebhookSettings::default() },
    };
    if let Some(tls) = tls {
        tokio::spawn(tls.follow());
    }
    if let Some(keeper) = without_predecessor {
        keeper.serving().await?;
    }
    Ok(skep_server::run(order, shutdown).await?)
}

/// The limits of the settings, lowered to what this process may open.
fn limits_within_descriptors(settings: &Settings) -> Limits {
    let limits = settings.transport.limits();
    let Some(descriptors) = getrlimit(Resource::Nofile).current else { return limits };
    let (wanted, limits) = (limits.max_connections, limits.within_descriptors(descriptors));
    let accepted = limits.max_connections;
    if accepted < wanted {
        tracing::warn!(
            descriptors,
            accepted,
            "the server accepts {accepted} connections instead of {wanted} (--max-connections), because it may open \
             {descriptors} files; raise that limit (`ulimit -Hn`, or LimitNOFILE= in the unit)"
        );
    }
    limits
}

/// The dashboard, if this binary has it.
pub(crate) fn dashboard() -> Option<Dashboard> {
    #[cfg(feature = "dashboard")]
    {
        skep_dashboard::PAGE.map(|page| Dashboard { page, files: skep_dashboard::files })
    }
    #[cfg(not(feature = "dashboard"))]
    {
        None
    }
}

/// A login link of the first admin key, if the message goes to a terminal: other readers of the output, such as the
/// journal, store it.
async fn link_for_terminal(
    settings: &Settings,
    store: &dyn Store,
    admin_key: Option<KeyHash>,
    listener: &TcpListener,
    encrypted: bool,
) -> Option<SessionLink> {
    if settings.log_format == LogFormat::Json || !io::stdout().is_terminal() {
        return None;
    }
    let address = listener.local_addr().ok()?;
    let hash = admin_key?;
    let url = match settings.transport.public_url.clone() {
        Some(url) => url,
        None => PublicUrl::of_listener(address, encrypted).for_sessions_of(&hash)?,
    };
    let key = store.key_by_hash(hash).await.ok()??.record.key;
    check_validity(&key, Timestamp::now()).ok()?;
    match link_for_operator(store, &key, &url).await {
        Ok(link) => Some(link),
        Err(reason) => {
            tracing::warn!(reason, "no login link was created: {reason}");
            None
        }
    }
}

/// Prints the address, the key file, and commands to try. With JSON logs, logs the address and the key file instead.
fn print_startup_message(
    settings: &Settings,
    listener: &TcpListener,
    metrics: Option<&TcpListener>,
    no_swarm: Option<&String>,
    encrypted: bool,
    link: Option<SessionLink>,
) -> anyhow::Result<()> {
    let scheme = if encrypted { "https" } else { "http" };
    let url = format!("{scheme}://{}", listener.local_addr().context("the listening socket has no address")?);
    let data_dir = settings.data_dir.display();
    tracing::info!(url, "serving at {url}");
    let mut lines = vec![
        format!("skep serves at {url}"),
        format!("The admin key is in {}", settings.admin_key().display()),
    ];
    if let Some(address) = metrics.and_then(|listener| listener.local_addr().ok()) {
        lines.push(format!("Metrics are at http://{address}/metrics, for this machine alone"));
    }
    if let Some(reason) = no_swarm {
        lines.push(format!("No VMs can be booted here: {reason}"));
    }
    if let Some(SessionLink { url, .. }) = link {
        lines.push(format!("Log a browser in once, within 10 minutes: {url}"));
    }
    // A reader of both streams, such as a journal, expects JSON on each line.
    if settings.log_format == LogFormat::Json {
        lines.iter().for_each(|line| tracing::info!("{line}"));
        return Ok(());
    }
    // Clients do not trust a self-signed certificate without its file.
    let trust = settings.transport.tls.map(|_| self_signed::certificate_file(&self_signed_dir(settings)));
    let trust = trust.map(|file| format!(" SKEP_CA_FILE={}", file.display())).unwrap_or_default();
    lines.push(format!("Try, in another terminal (export SKEP_URL={url} SKEP_DATA_DIR={data_dir}{trust}):"));
    let commands = match no_swarm {
        None => ["skep boot -n 3", "skep exec PID uname -n", "skep cleanup"],
        Some(_) => ["skep doctor", "skep status", "skep keys list"],
    };
    lines.extend(commands.map(|command| format!("  {command}")));
    Ok(output::line(&lines.join("\n"))?)
}
