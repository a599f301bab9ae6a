//! What serving takes, whether one process does everything or the keeper started us.

use std::{future::Future, net::TcpListener, sync::Arc};

use anyhow::Context;
use jiff::Timestamp;
use skep_accounts::KeyHash;
use skep_server::{BootDefaults, Metrics, ServerOrder, WebhookOrder, tls::self_signed};
use skep_store::{EnsureAdminKey, EnsureDefaultAccount, SetAccountRoots, SqliteSettings, SqliteStore, Store};
use skep_swarm::Swarm;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    output,
    settings::Settings,
    tls::{Tls, own_folder},
};

/// What one account may boot at once where nothing else limits it: a larger `count` is a mistake, not a wish.
const LARGEST_BOOT: u32 = 1_000;

/// What the store keeps of the admin key.
pub(crate) struct AdminKey {
    pub(crate) hash: KeyHash,
    pub(crate) prefix: String,
}

/// Bound, and listening.
pub(crate) struct Listeners {
    /// The API.
    pub(crate) api: TcpListener,
    /// Metrics without a key, where the settings ask for them.
    pub(crate) metrics: Option<TcpListener>,
}

/// Opens the store, with the account `default`, its roots and its admin key.
pub(crate) async fn open_store(
    settings: &Settings,
    admin_key: Option<AdminKey>,
    metrics: &Metrics,
) -> anyhow::Result<Arc<dyn Store>> {
    let observer = Arc::new(metrics.clone());
    let sqlite = SqliteSettings { observer, ..SqliteSettings::at(settings.store()) };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(sqlite).await?);
    let at = Timestamp::now();
    let roots: Vec<String> = settings.roots().iter().map(|root| root.display().to_string()).collect();
    let account = store.ensure_default_account(EnsureDefaultAccount { roots: roots.clone(), at }).await?;
    if account.roots != roots {
        store.set_account_roots(SetAccountRoots { account: account.id, roots }).await?;
    }
    if let Some(AdminKey { hash, prefix }) = admin_key {
        store.ensure_admin_key(EnsureAdminKey { hash, prefix, at }).await?;
    }
    Ok(store)
}

/// Serves until SIGTERM, Ctrl-C, or `end`.
pub(crate) async fn serve(
    settings: &Settings,
    Listeners { api: listener, metrics: metrics_listener }: Listeners,
    metrics: Metrics,
    store: Arc<dyn Store>,
    swarm: Result<Swarm, String>,
    tls: Option<Tls>,
    end: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be waited for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be waited for")?;
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = end => {}
        }
        tell_service_manager(&[sd_notify::NotifyState::Stopping]);
    };
    greet(settings, &listener, metrics_listener.as_ref(), swarm.as_ref().err(), tls.is_some())?;
    let max_vms = settings.max_vms.unwrap_or(0).max(LARGEST_BOOT);
    let boot = BootDefaults { max_vms, ttl: settings.default_ttl };
    let order = ServerOrder {
        listener,
        store,
        swarm,
        data_dir: settings.server_dir(),
        workspaces: settings.workspaces(),
        boot,
        metrics,
        metrics_listener,
        tls: tls.as_ref().map(|tls| tls.certificates.clone()),
        proxies: settings.transport.proxies(),
        limits: settings.transport.limits(),
        webhooks: WebhookOrder { allow: settings.webhooks.webhook_allow.clone(), ..WebhookOrder::default() },
    };
    if let Some(tls) = tls {
        tokio::spawn(tls.follow());
    }
    tell_service_manager(&[sd_notify::NotifyState::Ready]);
    Ok(skep_server::run(order, shutdown).await?)
}

fn tell_service_manager(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager was not told {state:?}");
    }
}

/// Says where we serve, where the key lies, and what to try first.
fn greet(
    settings: &Settings,
    listener: &TcpListener,
    metrics: Option<&TcpListener>,
    no_swarm: Option<&String>,
    encrypted: bool,
) -> anyhow::Result<()> {
    let scheme = if encrypted { "https" } else { "http" };
    let url = format!("{scheme}://{}", listener.local_addr().context("the listening socket has no address")?);
    let data_dir = settings.data_dir.display();
    tracing::info!(url, "serving at {url}");
    let mut lines = vec![
        format!("skep serves at {url}"),
        format!("The admin key lies in {}", settings.admin_key().display()),
    ];
    if let Some(address) = metrics.and_then(|listener| listener.local_addr().ok()) {
        lines.push(format!("Metrics are at http://{address}/metrics, for this machine alone"));
    }
    if let Some(reason) = no_swarm {
        lines.push(format!("No VMs can be booted here: {reason}"));
    }
    // Without it, no client of ours would trust a certificate that nobody else signed.
    let trust = settings.transport.tls.map(|_| self_signed::certificate_file(&own_folder(settings)));
    let trust = trust.map(|file| format!(" SKEP_CA_FILE={}", file.display())).unwrap_or_default();
    lines.push(format!("Try, in another terminal (export SKEP_URL={url} SKEP_DATA_DIR={data_dir}{trust}):"));
    let commands = match no_swarm {
        None => ["skep boot -n 3", "skep exec PID uname -n", "skep cleanup"],
        Some(_) => ["skep doctor", "skep status", "skep keys list"],
    };
    lines.extend(commands.map(|command| format!("  {command}")));
    Ok(output::line(&lines.join("\n"))?)
}
