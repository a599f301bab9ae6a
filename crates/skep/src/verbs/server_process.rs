//! `skep server-process`: the unprivileged process that parses requests; started by the keeper.

use std::{
    env,
    fs::DirBuilder,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use rustix::fs::{FileType, fstat};
use skep_engine::Driver;
use skep_keeper_protocol::{ServerEnd, SwarmAbility, Welcome, peek_welcome};
use skep_server::{
    Metrics, SwarmToCome,
    confine::{Confinement, Reach, Rules, confine},
    swarm_at_hand,
};
use skep_store::Store;
use skep_swarm::{Parts, Swarm};
use tokio::sync::watch;

use crate::{
    account_roots, engine, helper_process, logging, output,
    service::{self, AdminKey, Listeners, Others},
    settings::Settings,
    tls::{Holder, Tls},
};

/// The descriptor of the keeper's socket.
const KEEPER: i32 = 3;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let keeper = inherited()?;
    let welcome = peek_welcome(keeper.as_fd())?;
    let settings: Settings =
        serde_json::from_value(welcome.settings).context("the keeper's settings are not ours")?;
    logging::begin(&settings)?;
    let prepared = make_workspace(&settings).and_then(|()| confine_to(&settings));
    // The runtime starts after the confinement, which does not apply to existing threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .context("the asynchronous runtime could not start")?
        .block_on(serve(keeper, settings, prepared))?;
    Ok(ExitCode::SUCCESS)
}

/// Takes over the keeper's socket.
fn inherited() -> anyhow::Result<OwnedFd> {
    // SAFETY: this process has not opened or closed a descriptor yet, so a descriptor with this number was inherited
    // and stays open while it is inspected.
    let looked_at = unsafe { BorrowedFd::borrow_raw(KEEPER) };
    let socket = fstat(looked_at).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    if !socket {
        bail!("this verb is for `skep serve`, which starts it with a socket");
    }
    // SAFETY: the check above has shown that it is open, and no other object in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(KEEPER) })
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

fn confine_to(settings: &Settings) -> anyhow::Result<()> {
    let mut write = settings.roots();
    write.extend([settings.server_dir(), settings.workspaces()]);
    write.extend(account_roots::present(&settings.data_dir, &settings.store()));
    let mut read = trusted();
    read.push(settings.image_dir());
    let reach = Reach { write, read };
    match confine(&reach, rules())? {
        Confinement::Full => tracing::debug!("confined by Landlock"),
        Confinement::Partial => {
            tracing::info!(
                "confined by Landlock as far as this kernel goes; `skep doctor` lists what is not covered"
            );
        }
        Confinement::None => tracing::warn!("this kernel has no Landlock: only the uid confines the server"),
    }
    Ok(())
}

/// The certificates that webhooks trust instead of the system's. The TLS library reads the same variables.
fn trusted() -> Vec<PathBuf> {
    let file = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let folders = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    env::split_paths(&folders).chain(file).filter(|path| path.is_absolute()).collect()
}

/// The Landlock rules; tests select those of older kernels.
fn rules() -> Rules {
    if env::var_os("SKEP_LANDLOCK_ABI").is_some_and(|abi| abi == "2") { Rules::Abi2 } else { Rules::Newest }
}

async fn serve(keeper: OwnedFd, settings: Settings, prepared: anyhow::Result<()>) -> anyhow::Result<()> {
    let (keeper, welcome, listeners) = ServerEnd::connect(keeper).await?;
    let succeeds = welcome.succeeds;
    let served = match prepared {
        Ok(()) => serve_as(keeper.clone(), welcome, listeners, settings).await,
        refused => refused,
    };
    if let (true, Err(error)) = (succeeds, &served) {
        // Reports the failure to the caller of the restart. Once the server has reported that it serves, this has no
        // effect.
        let _ = keeper.unable(output::one_line(error)).await;
    }
    served
}

async fn serve_as(
    keeper: ServerEnd,
    welcome: Welcome,
    listeners: Vec<OwnedFd>,
    settings: Settings,
) -> anyhow::Result<()> {
    let Welcome { admin_key, swarm, succeeds, .. } = welcome;
    let admin_key = admin_key
        .map(|key| {
            Ok::<_, skep_accounts::Refusal>(AdminKey { hash: key.sha256.parse()?, prefix: key.prefix })
        })
        .transpose()?;
    let listeners = sort(listeners, &settings)?;
    let tls = Tls::of(&settings, Holder::Keeper(keeper.clone())).await?;
    let metrics = Metrics::default();
    let store = service::open_store(&settings, admin_key, &metrics).await?;
    let api = listeners.vms.as_ref().map(TcpListener::local_addr).transpose();
    let api = api.context("the listening socket of the API for VMs has no address")?;
    let begin =
        start_swarm(keeper.clone(), Arc::clone(&store), swarm, settings.pool_size, api, metrics.clone());
    let swarm = if succeeds { take_over(keeper.clone(), begin) } else { swarm_at_hand(begin.await?) };
    let others = Others {
        swarm,
        helper: helper_process::by_keeper(keeper.clone()),
        restart: service::restart_by(keeper.clone()),
        is_first: !succeeds,
    };
    // Without its keeper, a server could not end the VMs that it boots.
    let gone = async move { keeper.closed().await };
    service::serve(&settings, listeners, metrics, store, others, tls, gone).await
}

/// Assigns the inherited sockets: those of the settings, in the order in which the keeper binds them, then the one for
/// VMs.
fn sort(listeners: Vec<OwnedFd>, settings: &Settings) -> anyhow::Result<Listeners> {
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
) -> SwarmToCome {
    let (tell, coming) = watch::channel(None);
    tokio::spawn(async move {
        let swarm = match keeper.ready().await {
            Ok(()) => begin.await,
            Err(error) => Err(error.into()),
        };
        tell.send_replace(Some(swarm.unwrap_or_else(|error| {
            let reason = output::one_line(&error);
            tracing::error!(reason, "the VMs could not be taken over: {reason}");
            Err(reason)
        })));
    });
    coming
}

async fn start_swarm(
    keeper: ServerEnd,
    store: Arc<dyn Store>,
    ability: SwarmAbility,
    pool_size: Option<u32>,
    api: Option<SocketAddr>,
    metrics: Metrics,
) -> anyhow::Result<Result<Swarm, String>> {
    let (report, max_vms, memory_mb, overhead_mb) = match ability {
        SwarmAbility::Unable { reason } => {
            skep_swarm::lose_all(&*store, &metrics).await?;
            return Ok(Err(reason));
        }
        SwarmAbility::Able { engine, max_vms, memory_mb, overhead_mb } => {
            (engine, max_vms, memory_mb, overhead_mb)
        }
    };
    // The report comes from the keeper, as this process cannot open /dev/kvm.
    let driver: Arc<dyn Driver> = Arc::new(engine::of(&report)?);
    let observer = Arc::new(metrics);
    let parts = Parts {
        keeper,
        driver,
        store,
        engine: report,
        max_vms,
        memory_mb,
        overhead_mb,
        pool_size,
        api,
        observer,
    };
    Ok(Ok(Swarm::start(parts).await?))
}
