//! The keeper's life: take the data directory, start the server, serve it, start it again, clear all away.

use std::{
    net::TcpListener,
    os::fd::OwnedFd,
    process::{ExitCode, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getpid, getrlimit, getuid, set_child_subreaper, setrlimit};
use skep_keeper_protocol::{AdminKey, KeeperEnd, SwarmAbility, Welcome};
use tokio::time::sleep;

use crate::{
    DataDir, Error, KeeperOrder, Started, User, admin_key, capacity, clean, data_dir::make, lock::Lock,
    server_process::ServerProcess, serving::serve, stop::Stop, vmms::Vmms,
};

/// The first pause before a server that died is started again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that lived this long had started well.
const WELL_STARTED: Duration = Duration::from_secs(10);

/// Keeps until SIGTERM, SIGINT or SIGHUP. `started` is called once, when the address is taken and before the server runs.
///
/// # Errors
/// The data directory, the address or the user cannot be had; nothing is left then. A first server that gives up by
/// itself is no error: its exit code is ours.
pub fn run(mut order: KeeperOrder, started: impl FnOnce(&Started)) -> Result<ExitCode, Error> {
    if !getuid().is_root() {
        return Err(Error::NotRoot);
    }
    // VMMs are children of a stage that ends; they become ours, so that we can reap them.
    set_child_subreaper(Some(getpid())).map_err(Error::io("child subreaper"))?;
    lift_descriptor_limit().map_err(Error::io("limit of open files"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::io("runtime of the keeper"))?;
    let data_dir = DataDir::open(&order.data_dir)?;
    let lock = Lock::take(&data_dir)?;
    let outcome = runtime.block_on(keep(&mut order, &data_dir, &lock, started));
    let cleared = clean::leftovers(&data_dir);
    lock.release()?;
    let code = outcome?;
    cleared.map(|()| code)
}

/// A VM takes some descriptors of ours and of the server's, and the usual limit is a thousand.
fn lift_descriptor_limit() -> rustix::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
}

async fn keep(
    order: &mut KeeperOrder,
    data_dir: &DataDir,
    lock: &Lock,
    started: impl FnOnce(&Started),
) -> Result<ExitCode, Error> {
    let mut stop = Stop::new()?;
    clean::leftovers(data_dir)?;
    let user = User::resolve(order.user.as_deref(), order.first_root.as_deref())?;
    data_dir.give_to(&user)?;
    let key = admin_key::find_or_make(data_dir)?;
    let listeners = listen(order)?;
    let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect::<Vec<_>>();
    let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    lock.listening_at(&text.join(", "))?;
    make(&data_dir.sockets(), 0o700)?;

    let (vmms, ability) = prepare_swarm(order, data_dir).await;
    let no_swarm = match &ability {
        SwarmAbility::Unable { reason } => Some(reason.clone()),
        SwarmAbility::Able { .. } => None,
    };
    started(&Started {
        addresses,
        admin_key_file: data_dir.admin_key(),
        new_admin_key: key.new,
        user: user.clone(),
        no_swarm,
    });
    let keeper = Keeper {
        order,
        user,
        key: key.public,
        ability,
        listeners: listeners.into_iter().map(OwnedFd::from).collect(),
        vmms: vmms.map(Arc::new),
    };
    let outcome = keeper.until_stopped(&mut stop).await;
    match keeper.vmms.and_then(Arc::into_inner) {
        Some(vmms) => vmms.close().await.and(outcome),
        None => outcome,
    }
}

fn listen(order: &KeeperOrder) -> Result<Vec<TcpListener>, Error> {
    let bind = |address| TcpListener::bind(address).map_err(|source| Error::Listen { address, source });
    order.listen.iter().copied().map(bind).collect()
}

/// A machine that lacks something serves everything but VMs, and says why.
async fn prepare_swarm(order: &mut KeeperOrder, data_dir: &DataDir) -> (Option<Vmms>, SwarmAbility) {
    let swarm = std::mem::replace(&mut order.swarm, Err(String::new()));
    let prepared = async {
        let swarm = swarm.map_err(Error::NoSwarm)?;
        let capacity = capacity::measure(&swarm, data_dir)?;
        let binary = order.binary.clone();
        Ok((Vmms::prepare(data_dir.clone(), swarm, binary, capacity.max_vms).await?, capacity))
    };
    match prepared.await {
        Ok((vmms, capacity)) => {
            let engine = vmms.swarm().engine.clone();
            let ability =
                SwarmAbility::Able { engine, max_vms: capacity.max_vms, memory_mb: capacity.memory_mb };
            (Some(vmms), ability)
        }
        Err(error) => {
            let error: Error = error;
            tracing::warn!(%error, "this start has no VMs: {error}");
            (None, SwarmAbility::Unable { reason: error.to_string() })
        }
    }
}

struct Keeper<'a> {
    order: &'a KeeperOrder,
    user: User,
    key: AdminKey,
    ability: SwarmAbility,
    listeners: Vec<OwnedFd>,
    vmms: Option<Arc<Vmms>>,
}

/// How one server's life ended.
enum Life {
    /// We were told to stop.
    Stopped(Option<ExitStatus>),
    /// It ended by itself.
    Died(Option<ExitStatus>),
}

impl Keeper<'_> {
    async fn until_stopped(&self, stop: &mut Stop) -> Result<ExitCode, Error> {
        let mut pause = FIRST_PAUSE;
        let mut first = true;
        loop {
            let begun = Instant::now();
            let status = match self.one_life(stop).await? {
                Life::Stopped(status) => return Ok(exit_code(status)),
                Life::Died(status) => status,
            };
            let well_started = begun.elapsed() >= WELL_STARTED;
            // A configuration that it cannot start with: told now, not tried for ever.
            if let (true, false, Some(code)) = (first, well_started, status.and_then(|status| status.code()))
                && code != 0
            {
                return Ok(exit_code(status));
            }
            first = false;
            pause = if well_started { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            tracing::error!(?status, "the server died ({status:?}) and is started again in {pause:?}");
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.asked() => return Ok(ExitCode::SUCCESS),
            }
        }
    }

    /// From the start of a server until nothing of it and its VMs is left.
    async fn one_life(&self, stop: &mut Stop) -> Result<Life, Error> {
        let (ours, theirs) = skep_keeper_protocol::pair()?;
        let end = KeeperEnd::new(ours)?;
        let listeners = self.listener_copies()?;
        let server = ServerProcess::start(self.order, &self.user, theirs)?;
        let mut serving = tokio::spawn(serve(end, self.welcome(), listeners, self.vmms.clone()));
        let mut stopped = tokio::select! {
            () = server.ended() => false,
            // An exit closes the socket first; the process and its status follow.
            _ = &mut serving => false,
            () = stop.asked() => true,
        };
        if stopped {
            server.ask_to_end();
        }
        tokio::select! {
            () = server.ended() => {}
            () = sleep(self.order.grace) => tracing::warn!("the server takes too long to end and is killed"),
            () = stop.asked() => {
                tracing::warn!("asked to stop while the server was ending: it is killed");
                stopped = true;
            }
        }
        server.kill();
        server.ended().await;
        let status = server.status();
        // Its socket is closed now; what it asked last is finished.
        if !serving.is_finished() {
            let _ = serving.await;
        }
        if let Some(vmms) = &self.vmms {
            vmms.end_all().await;
        }
        Ok(if stopped { Life::Stopped(status) } else { Life::Died(status) })
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            settings: self.order.settings.clone(),
            admin_key: Some(self.key.clone()),
            swarm: self.ability.clone(),
        }
    }

    /// Ours stay open: while a server is started again, connections wait and are not refused.
    fn listener_copies(&self) -> Result<Vec<OwnedFd>, Error> {
        let copies = self.listeners.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>();
        copies.map_err(Error::io("listening socket"))
    }
}

fn exit_code(status: Option<ExitStatus>) -> ExitCode {
    let code = status.and_then(|status| status.code()).unwrap_or(0);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
