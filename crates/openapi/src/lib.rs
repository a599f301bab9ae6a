//! The OpenAPI document of the API. It is made of the routes of a server, so that one is started for it.

use std::{net::TcpListener, path::Path, sync::Arc};

use anyhow::Context;
use skep_api::{ErrorCode, Failure};
use skep_client::Client;
use skep_server::{
    BootDefaults, Limits, Metrics, RootRules, ServerOptions, ShutdownKind, TrustedProxies, WebhookSettings,
    WorkspaceDisk, ready_swarm, run as serve,
};
use skep_store::{SqliteSettings, SqliteStore, Store};
use tokio::sync::oneshot;

/// Starts a server with an empty store on a free port of 127.0.0.1, requests the document from it, and stops it. Returns
/// the document as JSON.
///
/// # Errors
/// If no folder, port or store can be had, or the server fails.
pub async fn document() -> anyhow::Result<Vec<u8>> {
    let data = tempfile::tempdir().context("no folder for a store can be created")?;
    let listener = TcpListener::bind("127.0.0.1:0").context("no port of 127.0.0.1 can be bound")?;
    let url = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel();
    let options = options(listener, data.path()).await?;
    let serving = tokio::spawn(serve(options, async move { stopped.await.unwrap_or(ShutdownKind::Final) }));
    let document = Client::new(&url, None)?.openapi().await;
    let _ = stop.send(ShutdownKind::Final);
    serving.await??;
    Ok(document?.text.into())
}

async fn options(listener: TcpListener, data: &Path) -> anyhow::Result<ServerOptions> {
    let unavailable = || Failure::new(ErrorCode::Internal, "this server has neither helpers nor successors");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(SqliteSettings::at(data.join("skep.db"))).await?);
    Ok(ServerOptions {
        listener,
        vm_listener: None,
        workspace_disk: WorkspaceDisk::new(Arc::clone(&store)),
        store,
        swarm: ready_swarm(Err("this server has no VMs".to_owned())),
        helper: Arc::new(move |_| Box::pin(async move { Err(unavailable()) })),
        restart: Arc::new(move || Box::pin(async move { Err(unavailable()) })),
        data_dir: data.to_owned(),
        roots: RootRules::new(data)?,
        boot: BootDefaults { max_vms: 1, ttl: None },
        metrics: Metrics::default(),
        metrics_listener: None,
        tls: None,
        git_allow: Vec::new(),
        egress_deny: Vec::new(),
        proxies: TrustedProxies::default(),
        public_url: None,
        dashboard: None,
        limits: Limits::default(),
        webhooks: WebhookSettings::default(),
    })
}
