//! The keeper's main function: locks the data directory, prepares VMs, supervises the server, and cleans up at the end.

use std::{process::ExitCode, sync::Arc};

use rustix::process::{Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setrlimit};
use skep_jail::oom_score_adj;
use skep_keeper_protocol::SwarmAvailability;
use tokio::task::JoinSet;

use crate::{
    DataDir, Error, KeeperConfig, StartReport, User, VmLimits, admin_key,
    adopt::{self, RunningVm},
    capacity::Capacity,
    cleanup,
    data_dir::create_dir_all,
    helpers::Helpers,
    listeners::Listeners,
    lock::Lock,
    memory,
    privileges::{has_root, protect_from_same_user},
    records::Records,
    stop_signal::{StopSignals, VmsAtStop},
    succession::ServerSupervisor,
    vmms::Vmms,
};

/// Runs the keeper until SIGTERM, SIGINT or SIGHUP. `started` is called once, after the address is bound and before the
/// server runs. At SIGTERM committed VMs keep running for the next keeper; otherwise everything is removed.
///
/// # Errors
/// The data directory, the address or the user is not available; running VMs are left alone then. A first server that
/// exits by itself is no error: its exit code is returned.
pub fn run(mut order: KeeperConfig, started: impl FnOnce(&StartReport)) -> Result<ExitCode, Error> {
    if has_root() {
        // VMMs are children of a stage process that exits; as subreaper we inherit them and can reap them.
        set_child_subreaper(Some(getpid())).map_err(Error::io("child subreaper"))?;
        oom_score_adj::set(oom_score_adj::KEEPER).map_err(Error::io("priority for the OOM killer"))?;
    } else {
        protect_from_same_user()?;
    }
    raise_descriptor_limit().map_err(Error::io("limit of open files"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::io("runtime of the keeper"))?;
    let data_dir = DataDir::open(&order.data_dir)?;
    let lock = Lock::take(&data_dir)?;
    let outcome = runtime.block_on(run_locked(&mut order, &data_dir, &lock, started));
    // A VM that keeps running has a record, and the resources that it uses stay.
    let cleared =
        if Records::of(&data_dir).is_empty() { cleanup::remove_leftovers(&data_dir) } else { Ok(()) };
    lock.release()?;
    let code = outcome?;
    cleared.map(|()| code)
}

/// Each VM takes several descriptors of the keeper and of the server, and the default limit is 1024.
fn raise_descriptor_limit() -> rustix::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
}

async fn run_locked(
    order: &mut KeeperConfig,
    data_dir: &DataDir,
    lock: &Lock,
    started: impl FnOnce(&StartReport),
) -> Result<ExitCode, Error> {
    let mut stop = StopSignals::new()?;
    let running_vms = adopt::running_vms(data_dir)?;
    if running_vms.is_empty() {
        cleanup::remove_leftovers(data_dir)?;
    }
    let user = if has_root() {
        User::resolve(order.user.as_deref(), order.first_root.as_deref())?
    } else {
        User::current()
    };
    data_dir.give_to(&user)?;
    let key = admin_key::find_or_create(data_dir)?;
    let listeners = Listeners::open(&order.listen)?;
    let addresses = listeners.addresses();
    let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    lock.publish_address(&text.join(", "))?;
    let (vmms, ability) = prepare_swarm(order, data_dir, running_vms).await?;
    let no_swarm = match &ability {
        SwarmAvailability::Unable { reason } => Some(reason.clone()),
        SwarmAvailability::Able { .. } => None,
    };
    started(&StartReport {
        addresses,
        admin_key_file: data_dir.admin_key(),
        new_admin_key: key.new,
        user: user.clone(),
        no_swarm,
    });
    let vmms = vmms.map(Arc::new);
    let mut tasks = vmms.as_ref().map_or_else(JoinSet::new, start_tasks);
    let helpers = Arc::new(Helpers::new(order.binary.clone(), user.clone(), data_dir.clone()));
    let supervisor = ServerSupervisor { order, user, key: key.public, ability, listeners, vmms, helpers };
    let outcome = supervisor.until_stopped(&mut stop).await;
    // They hold the VMMs.
    tasks.shutdown().await;
    let cleared = supervisor.helpers.close();
    if let Some(vmms) = supervisor.vmms.and_then(Arc::into_inner) {
        release_vms(vmms, outcome.as_ref().map_or(VmsAtStop::Keep, |(_, wish)| *wish)).await?;
    }
    let (code, _) = outcome?;
    cleared.map(|()| code)
}

/// Starts what guards the memory, and the builds of templates.
fn start_tasks(vmms: &Arc<Vmms>) -> JoinSet<()> {
    vmms.begin_builds();
    let mut tasks = JoinSet::new();
    if vmms.swarm().memory_guard {
        tasks.spawn(memory::run_guard(Arc::clone(vmms)));
    }
    tasks.spawn(Arc::clone(vmms).unload_templates());
    tasks
}

/// Removes VMs and their resources, or logs that the VMs keep running.
async fn release_vms(vmms: Vmms, wish: VmsAtStop) -> Result<(), Error> {
    let living = vmms.count();
    if living == 0 || wish == VmsAtStop::End {
        return vmms.close().await;
    }
    tracing::info!(
        living,
        "{living} VMs live on; `skep serve` takes them over, `skep doctor --clean` ends them"
    );
    Ok(())
}

/// Prepares VMs. On a machine that cannot run them, everything else is served, and the reason is logged.
async fn prepare_swarm(
    order: &mut KeeperConfig,
    data_dir: &DataDir,
    running_vms: Vec<RunningVm>,
) -> Result<(Option<Vmms>, SwarmAvailability), Error> {
    let swarm = match std::mem::replace(&mut order.swarm, Err(String::new())) {
        // Expected, and no fault of the machine.
        Err(reason) if !has_root() => return Ok((None, SwarmAvailability::Unable { reason })),
        swarm => swarm,
    };
    let prepared = async {
        let swarm = swarm.map_err(Error::NoSwarm)?;
        create_dir_all(&data_dir.sockets(), 0o700)?;
        Vmms::prepare(data_dir.clone(), swarm, order.binary.clone(), running_vms).await
    };
    match prepared.await {
        Ok(vmms) => {
            let (engine, capacity) = (vmms.swarm().engine.clone(), vmms.capacity());
            let VmLimits { guest_memory_mb, overhead_mb, .. } = vmms.swarm().limits;
            let Capacity { max_vms, memory_mb, promises_mb } = capacity;
            let ability = SwarmAvailability::Able {
                engine,
                max_vms,
                memory_mb,
                promises_mb,
                guest_memory_mb,
                overhead_mb,
            };
            Ok((Some(vmms), ability))
        }
        Err(error) => {
            tracing::warn!(%error, "this server has no VMs: {error}");
            // The engine, the network namespace or the control groups are missing, so this keeper cannot reach the VMs of an earlier
            // one, and ends them. A failure to load or bake a template while such VMs run is handled by `Templates::open`.
            cleanup::remove_leftovers(data_dir)?;
            Ok((None, SwarmAvailability::Unable { reason: error.to_string() }))
        }
    }
}
