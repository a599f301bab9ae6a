//! `skep openapi`.

use std::{net::TcpListener, path::Path, process::ExitCode, sync::Arc};

use anyhow::Context;
use clap::Args;
use skep_api::{ErrorCode, Failure};
use skep_client::Client;
use skep_server::{
    BootDefaults, Limits, Metrics, RootRules, ServerOptions, ShutdownKind, TrustedProxies, WebhookSettings,
    ready_swarm, run as serve,
};
use skep_store::{SqliteSettings, SqliteStore};
use tokio::sync::oneshot;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  skep openapi > openapi.json                # to generate a client of this version";

/// Print the OpenAPI document of the API. It needs no running server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Openapi {}

/// Asks a server of its own, because the document is made of the routes of one. It has an empty store, and nobody else
/// knows its address.
pub(crate) async fn run(_: Openapi) -> anyhow::Result<ExitCode> {
    let data = tempfile::tempdir().context("no folder for a store can be created")?;
    let listener = TcpListener::bind("127.0.0.1:0").context("no port of 127.0.0.1 can be bound")?;
    let url = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel();
    let options = options(listener, data.path()).await?;
    let serving = tokio::spawn(serve(options, async move { stopped.await.unwrap_or(ShutdownKind::Final) }));
    let document = Client::new(&url, None)?.openapi().await;
    let _ = stop.send(ShutdownKind::Final);
    serving.await??;
    output::bytes(&document?.text)?;
    Ok(ExitCode::SUCCESS)
}

async fn options(listener: TcpListener, data: &Path) -> anyhow::Result<ServerOptions> {
    let unavailable = || Failure::new(ErrorCode::Internal, "this server has neither helpers nor successors");
    Ok(ServerOptions {
        listener,
        vm_listener: None,
        store: Arc::new(SqliteStore::open(SqliteSettings::at(data.join("skep.db"))).await?),
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
        proxies: TrustedProxies::default(),
        public_url: None,
        dashboard: None,
        limits: Limits::default(),
        webhooks: WebhookSettings::default(),
    })
}
