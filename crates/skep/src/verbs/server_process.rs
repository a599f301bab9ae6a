//! `skep server-process`: the unprivileged process that parses requests; started by the keeper.

use std::{
    env,
    fs::DirBuilder,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use rustix::{
    fs::FileType,
    process::{DumpableBehavior, set_dumpable_behavior},
};
use skep_api::TemplateId;
use skep_engine::qemu::QemuDriver;
use skep_keeper_protocol::{ServerEnd, ServerSetup, SwarmAvailability, TemplateState, peek_setup};
use skep_server::{
    Metrics, SwarmReceiver, WorkspaceDisk,
    confine::{AllowedPaths, Confinement, Rules, confine},
    ready_swarm,
};
use skep_store::{EnsureBaseTemplate, RecordTemplateState, Store, TemplateStatus};
use skep_swarm::{Swarm, SwarmParts};
use tokio::sync::watch;

use crate::{
    account_roots, helper_process, inherited, logging, output,
    service::{self, AdminKey, Listeners, ServerParts},
    settings::Settings,
    tls::Tls,
};

/// The descriptor of the keeper's socket.
const KEEPER_FD: i32 = 3;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let keeper = inherited::take(KEEPER_FD, FileType::Socket)?;
    // Without root, programs of callers run as the same user in the same PID namespace.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("the process cannot be made undumpable")?;
    let setup = peek_setup(keeper.as_fd())?;
    let settings: Settings =
        serde_json::from_value(setup.settings).context("the keeper's settings are not ours")?;
    logging::init(&settings)?;
    let prepared = make_workspace(&settings).and_then(|()| confine_process(&settings));
    // The runtime starts after the confinement, which does not apply to existing threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .context("the asynchronous runtime could not start")?
        .block_on(serve(keeper, settings, prepared))?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the default root of the account `default`. Roots that are named must exist.
fn make_workspace(settings: &Settings) -> anyhow::Result<()> {
    if settings.root.is_empty() {
        for root in settings.roots() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&root);
            made.with_context(|| format!("the workspace {} cannot be created", root.display()))?;
        }
    }
    Ok(())
}

fn confine_process(settings: &Settings) -> anyhow::Result<()> {
    let mut write = settings.roots();
    write.extend([settings.server_dir(), settings.workspaces()]);
    write.extend(account_roots::existing(&settings.data_dir, &settings.store()));
    let mut read = certificate_paths();
    read.push(settings.image_dir());
    let reach = AllowedPaths { write, read };
    match confine(&reach, landlock_rules())? {
        Confinement::Full => tracing::debug!("confined by Landlock"),
        Confinement::Partial => {
            tracing::info!(
                "confined by Landlock as far as this kernel goes; `skep doctor` lists what is not covered"
            );
        }
        Confinement::None => {
            tracing::warn!("this kernel has no Landlock: only uid and seccomp confine the server")
        }
    }
    Ok(())
}

/// The certificates that webhooks trust instead of the system's. The TLS library reads the same variables.
fn certificate_paths() -> Vec<PathBuf> {
    let file = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let folders = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    env::split_paths(&folders).chain(file).filter(|path| path.is_absolute()).collect()
}

/// The Landlock rules; tests select those of older kernels.
fn landlock_rules() -> Rules {
    if env::var_os("SKEP_LANDLOCK_ABI").is_some_and(|abi| abi == "2") { Rules::Abi2 } else { Rules::Newest }
}

async fn serve(keeper: OwnedFd, settings: Settings, prepared: anyhow::Result<()>) -> anyhow::Result<()> {
    let (keeper, setup, listeners) = ServerEnd::connect(keeper).await?;
    let succeeds = setup.succeeds;
    let served = match prepared {
        Ok(()) => serve_with(keeper.clone(), setup, listeners, settings).await,
        refused => refused,
    };
    if let (true, Err(error)) = (succeeds, &served) {
        // Reports the failure to the caller of the restart. Once the server has reported that it serves, this has no
        // effect.
        let _ = keeper.unable(output::one_line(error)).await;
    }
    served
}

async fn serve_with(
    keeper: ServerEnd,
    setup: ServerSetup,
    listeners: Vec<OwnedFd>,
    settings: Settings,
) -> anyhow::Result<()> {
    let ServerSetup { admin_key, swarm, succeeds, .. } = setup;
    let admin_key = admin_key
        .map(|key| Ok::<_, skep_accounts::Error>(AdminKey { hash: key.sha256.parse()?, prefix: key.prefix }))
        .transpose()?;
    let admin_hash = admin_key.as_ref().map(|key| key.hash);
    let listeners = assign_listeners(listeners, &settings)?;
    let tls = Tls::of(&settings, keeper.clone()).await?;
    let metrics = Metrics::default();
    let store = service::open_store(&settings, admin_key, &metrics).await?;
    let api = listeners.vms.as_ref().map(TcpListener::local_addr).transpose();
    let api = api.context("the listening socket of the API for VMs has no address")?;
    let workspace_disk = WorkspaceDisk::new(Arc::clone(&store));
    let disk = workspace_disk.clone();
    let begin = start_swarm(
        keeper.clone(),
        Arc::clone(&store),
        swarm,
        settings.pool_size,
        api,
        disk,
        metrics.clone(),
    );
    let swarm = if succeeds { take_over(keeper.clone(), begin) } else { ready_swarm(begin.await?) };
    let parts = ServerParts {
        swarm,
        workspace_disk,
        helper: helper_process::start_by_keeper(keeper.clone()),
        restart: service::restart_by_keeper(keeper.clone()),
        without_predecessor: (!succeeds).then(|| keeper.clone()),
        admin_key: admin_hash,
    };
    // Without its keeper, a server could not end the VMs that it boots.
    let gone = async move { keeper.closed().await };
    service::serve(&settings, listeners, metrics, store, parts, tls, gone).await
}

/// Assigns the inherited sockets: those of the settings, in the order in which the keeper binds them, then the one for
/// VMs.
fn assign_listeners(listeners: Vec<OwnedFd>, settings: &Settings) -> anyhow::Result<Listeners> {
    let sent = listeners.len();
    let mut listeners = listeners.into_iter().map(TcpListener::from);
    let api = listeners.next();
    let metrics = settings.metrics_listen.and_then(|_| listeners.next());
    match (api, listeners.next(), listeners.next()) {
        (Some(api), vms, None) if metrics.is_some() == settings.metrics_listen.is_some() => {
            Ok(Listeners { api, vms, metrics })
        }
        _ => bail!("the keeper sent {sent} listening sockets, which are not those of the settings"),
    }
}

/// The swarm of a successor. It starts when the predecessor's streams to the VMs are closed; the server serves
/// meanwhile.
fn take_over(
    keeper: ServerEnd,
    begin: impl Future<Output = anyhow::Result<Result<Swarm, String>>> + Send + 'static,
) -> SwarmReceiver {
    let (sender, coming) = watch::channel(None);
    tokio::spawn(async move {
        let swarm = match keeper.ready().await {
            Ok(()) => begin.await,
            Err(error) => Err(error.into()),
        };
        sender.send_replace(Some(swarm.unwrap_or_else(|error| {
            let reason = output::one_line(&error);
            tracing::error!(reason, "the VMs could not be taken over: {reason}");
            Err(reason)
        })));
    });
    coming
}

/// Records the template `base` before the first request, so that templates can be made from it at once.
async fn record_base(keeper: &ServerEnd, store: &dyn Store) -> anyhow::Result<()> {
    let (template, at) = (TemplateId::BASE, Timestamp::now());
    let base = keeper.template_status(template).await?;
    store.ensure_base_template(EnsureBaseTemplate { size: base.size, at }).await?;
    // The server records every other state as soon as it serves.
    if let TemplateState::Ready { key } = base.state {
        let status = TemplateStatus::Ready { key, size_bytes: base.size_bytes, own_bytes: base.own_bytes };
        store.record_template_state(RecordTemplateState { template, status, at }).await?;
    }
    Ok(())
}

async fn start_swarm(
    keeper: ServerEnd,
    store: Arc<dyn Store>,
    ability: SwarmAvailability,
    pool_size: Option<u32>,
    api: Option<SocketAddr>,
    workspace_disk: WorkspaceDisk,
    metrics: Metrics,
) -> anyhow::Result<Result<Swarm, String>> {
    let (engine, max_vms, memory_mb, promises_mb, guest_memory_mb, overhead_mb) = match ability {
        SwarmAvailability::Unable { reason } => {
            skep_swarm::record_all_as_lost(&*store, &metrics).await?;
            return Ok(Err(reason));
        }
        SwarmAvailability::Able { engine, max_vms, memory_mb, promises_mb, guest_memory_mb, overhead_mb } => {
            (engine, max_vms, memory_mb, promises_mb, guest_memory_mb, overhead_mb)
        }
    };
    record_base(&keeper, &*store).await?;
    let driver = Arc::new(QemuDriver);
    let observer = Arc::new(metrics);
    let parts = SwarmParts {
        keeper,
        driver,
        tickets: store.clone(),
        templates: store.clone(),
        store,
        engine,
        max_vms,
        memory_mb,
        promises_mb,
        guest_memory_mb,
        overhead_mb,
        pool_size,
        api,
        observer,
        workspaces: Arc::new(workspace_disk),
    };
    Ok(Ok(Swarm::start(parts).await?))
}
