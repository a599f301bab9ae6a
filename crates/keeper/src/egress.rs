//! The egress process, which connects VMs to hosts outside. It has a user, a control group and a PID namespace of its
//! own, and no privilege.
//!
//! The keeper has the policies and keeps the listeners open: when the process ends, it starts another one, and
//! connections of VMs wait meanwhile. The process outlives the keeper with the policies that it has, as VMs do, and the
//! next keeper adopts it: with its listeners, and giving it all policies again. One that speaks another protocol is
//! asked by a signal to accept nothing more, and another process takes its place with the same listeners.

mod earlier;
mod name_servers;
mod record;

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, TryLockError},
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use skep_api::egress::{EgressPolicy, EgressReport};
use skep_jail::{
    Cgroup, CgroupTree, Confinement, Handles, Jailed, ProcessSpec, Seclusion, UidPool, oom_score_adj,
    stage::SELF_EXE,
};
use skep_keeper_protocol::{EGRESS_PROTOCOL, EgressAnswer, EgressKeeperEnd, EgressRequest, EgressTotals};
use skep_network::{EgressListeners, Network};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use self::{
    earlier::{Found, connect, find},
    name_servers::NameServers,
    record::{Record, Use},
};
use crate::{
    DataDir, EgressConfig, Error,
    data_dir::remove_file,
    process_id::{ProcessId, boot_id},
};

/// The control group.
pub(crate) const GROUP: &str = "egress";
/// Limit of processes and threads.
const PIDS: u64 = 16;
const OTHER_ANSWER: Error = Error::NoEgress("the egress process gave another answer");
/// Between the end of a process and the start of the next one.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// How long a change of a policy waits for a process that is being started.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A killed process usually exits within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections of a process that was replaced live on.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a replaced process may take until it writes no names any more.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to lock the file of names.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Egress {
    shared: Arc<Shared>,
    supervisor: JoinHandle<()>,
    name_server_watch: JoinHandle<()>,
    /// Only one policy is changed at a time, so that the process has the last one.
    changing: tokio::sync::Mutex<()>,
}

struct Shared {
    binary: PathBuf,
    config: EgressConfig,
    uid: u32,
    group: Cgroup,
    listeners: EgressListeners,
    data_dir: DataDir,
    boot_id: String,
    name_servers: NameServers,
    /// A process of an earlier keeper whose connections may still end by themselves.
    replaced: Mutex<Option<Jailed>>,
    policies: Mutex<BTreeMap<Ipv4Addr, EgressPolicy>>,
    /// The running process, once it has all policies.
    running: watch::Sender<Option<Arc<Running>>>,
}

struct Running {
    process: Jailed,
    control: EgressKeeperEnd,
}

/// What a start needs besides the configuration.
pub(crate) struct EgressParts<'a> {
    pub(crate) data_dir: &'a DataDir,
    pub(crate) binary: &'a Path,
    pub(crate) tree: &'a CgroupTree,
    pub(crate) network: &'a Network,
}

impl Egress {
    /// Adopts the process of an earlier keeper, or starts one, with these policies of VMs, without waiting for it.
    pub(crate) async fn start(
        config: &EgressConfig,
        parts: EgressParts<'_>,
        uids: &mut UidPool,
        policies: Vec<(Ipv4Addr, EgressPolicy)>,
    ) -> Result<Self, Error> {
        let boot_id = boot_id()?;
        let Found { group, process, listeners } = find(config, &parts, &boot_id)?;
        let listeners = match listeners {
            Some(listeners) => listeners,
            None => parts.network.listen_for_egress().await?,
        };
        let (adopted, replaced, uid) = match process {
            Some((Use::Adopt, process, uid)) => {
                (Some(process), None, Some(uid).filter(|uid| uids.adopt(*uid)))
            }
            Some((Use::Replace, process, uid)) => {
                // Until the next start of the keeper no other process gets it.
                uids.adopt(uid);
                (None, Some(process), None)
            }
            None => (None, None, None),
        };
        let adopted = adopted.and_then(|process| connect(&parts.data_dir.egress_socket(), process));
        let shared = Arc::new(Shared {
            binary: parts.binary.to_owned(),
            config: config.clone(),
            uid: uid.map_or_else(|| uids.take(), Ok)?,
            group,
            listeners,
            data_dir: parts.data_dir.clone(),
            boot_id,
            name_servers: NameServers::new(config.name_servers.clone()),
            replaced: Mutex::default(),
            policies: Mutex::new(policies.into_iter().collect()),
            running: watch::Sender::default(),
        });
        if let Some(process) = replaced {
            shared.replace(process)?;
        }
        let supervisor = tokio::spawn(Arc::clone(&shared).supervise(adopted));
        let name_server_watch = tokio::spawn(Arc::clone(&shared).follow_name_servers());
        Ok(Self { shared, supervisor, name_server_watch, changing: tokio::sync::Mutex::default() })
    }

    /// Sets the policy of the VM at this address, and waits until the process applies it.
    pub(crate) async fn set(&self, vm: Ipv4Addr, policy: EgressPolicy) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let before = self.shared.policies().insert(vm, policy.clone());
        if before.as_ref().is_some_and(|before| *before != policy) {
            // It cannot be asked to end what the new policy forbids.
            self.shared.end_replaced();
        }
        let applied = self.request(EgressRequest::Set { vm, policy }).await;
        if applied.is_err() {
            // The next process gets what the VM had.
            self.shared.policies().insert(vm, before.unwrap_or_default());
        }
        applied.map(drop)
    }

    /// Forgets the VM at this address, which has ended. The packet filter stops its connections.
    pub(crate) async fn forget(&self, vm: Ipv4Addr) {
        let _changing = self.changing.lock().await;
        let known = self.shared.policies().remove(&vm).is_some();
        let running = self.shared.running.borrow().clone();
        if let Some(running) = running.filter(|_| known) {
            // The next process does not know it either.
            let _ = running.request(EgressRequest::Forget { vm }).await;
        }
    }

    pub(crate) async fn report(&self, vm: Ipv4Addr) -> Result<EgressReport, Error> {
        match self.request(EgressRequest::Report { vm }).await? {
            EgressAnswer::Report(report) => Ok(report),
            _ => Err(OTHER_ANSWER),
        }
    }

    pub(crate) async fn totals(&self) -> Result<EgressTotals, Error> {
        match self.request(EgressRequest::Totals).await? {
            EgressAnswer::Totals(totals) => Ok(totals),
            _ => Err(OTHER_ANSWER),
        }
    }

    /// Sends a request to the process, or to the next one if it has ended.
    async fn request(&self, request: EgressRequest) -> Result<EgressAnswer, Error> {
        let answered = timeout(START_TIMEOUT, async {
            let mut running = self.shared.running.subscribe();
            loop {
                // The sender lives as long as `self`, so this never fails.
                let found = running.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
                if let Some(answer) = found?.request(request.clone()).await {
                    return Some(answer);
                }
                running.changed().await.ok()?;
            }
        });
        let answer = answered.await.ok().flatten();
        answer.ok_or(Error::NoEgress("the egress process does not answer; try again"))
    }
}

impl Egress {
    /// Ends the process. Without this call it lives on for the next keeper. Blocks.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.supervisor.abort();
        self.name_server_watch.abort();
        self.shared.end_replaced();
        if let Some(running) = self.shared.running.send_replace(None) {
            running.end();
        }
        remove_file(&self.shared.data_dir.egress_record())?;
        remove_file(&self.shared.data_dir.egress_socket())
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.supervisor.abort();
        self.name_server_watch.abort();
    }
}

impl Running {
    /// `None` if the process has ended. One that does not answer is killed.
    async fn request(&self, request: EgressRequest) -> Option<EgressAnswer> {
        let answer = self.control.request(request).await;
        answer
            .inspect_err(|error| {
                tracing::warn!(%error, "the egress process does not answer and is started again: {error}");
                let _ = self.process.kill();
            })
            .ok()
    }

    fn end(&self) {
        let _ = self.process.kill();
        let _ = self.process.wait(KILL_TIMEOUT);
        self.process.reap();
    }
}

impl Shared {
    async fn supervise(self: Arc<Self>, mut adopted: Option<Running>) {
        loop {
            let ran = match adopted.take() {
                Some(running) => {
                    let pid = running.process.pid;
                    tracing::info!(pid, "the egress process is taken over");
                    self.run(running).await
                }
                None => self.run_once().await,
            };
            match ran {
                Ok(()) => tracing::warn!("the egress process has ended and is started again"),
                Err(error) => tracing::error!(%error, "the egress process cannot be started: {error}"),
            }
            sleep(RESTART_DELAY).await;
        }
    }

    /// Starts a process and waits until it ends.
    async fn run_once(self: &Arc<Self>) -> Result<(), Error> {
        let this = Arc::clone(self);
        let spawned = spawn_blocking(move || this.spawn()).await;
        let (process, socket) = spawned
            .map_err(|error| Error::io("start of the egress process")(std::io::Error::other(error)))??;
        self.run(Running { process, control: EgressKeeperEnd::new(socket)? }).await
    }

    /// Gives a process the policies and waits until it ends.
    async fn run(self: &Arc<Self>, running: Running) -> Result<(), Error> {
        let watched = running.process.pidfd.try_clone().map_err(Error::io("pidfd of the egress process"))?;
        let running = Arc::new(running);
        // SAFETY: the `OwnedFd` is moved in, so the descriptor stays open and unchanged as long as the `AsyncFd` exists.
        let ended = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
        let ended =
            ended.map_err(|error| Error::io("pidfd of the egress process")(std::io::Error::from(error)))?;
        if self.hand_over(&running).await.is_some() {
            self.running.send_replace(Some(Arc::clone(&running)));
            // After an error the end cannot be awaited: treated as ended, because it is killed next.
            let _ = ended.readable().await;
            self.running.send_replace(None);
        }
        let end = spawn_blocking(move || running.end());
        end.await.map_err(|error| Error::io("end of the egress process")(std::io::Error::other(error)))
    }

    /// Tells the running process of other name servers of the machine. The next process gets them at its start.
    async fn follow_name_servers(self: Arc<Self>) {
        loop {
            let servers = self.name_servers.changed().await;
            let running = self.running.borrow().clone();
            if let Some(running) = running {
                tracing::info!(?servers, "names of VMs are looked up by other name servers");
                running.request(EgressRequest::NameServers { servers }).await;
            }
        }
    }

    /// Gives the process the name servers and all policies. Policies that change meanwhile are sent again by whoever changes
    /// them.
    async fn hand_over(&self, running: &Running) -> Option<()> {
        let servers = self.name_servers.current().await;
        running.request(EgressRequest::NameServers { servers }).await?;
        let policies = self.policies().clone();
        for (vm, policy) in policies {
            running.request(EgressRequest::Set { vm, policy }).await?;
        }
        running.request(EgressRequest::Serve).await.map(drop)
    }

    fn spawn(&self) -> Result<(Jailed, OwnedFd), Error> {
        let names = self.lock_names()?;
        let path = self.data_dir.egress_socket();
        remove_file(&path)?;
        let failed = || Error::io(path.display().to_string());
        let control = skep_packet::listen(&path).map_err(failed())?;
        // Before the process exists, so that it learns of the keeper's end at any time.
        let ours = skep_packet::connect(&path).map_err(failed())?;
        let process = ProcessSpec {
            program: SELF_EXE.into(),
            arguments: self.config.arguments.clone(),
            environment: Vec::new(),
            uid: self.uid,
            gid: self.uid,
            groups: Vec::new(),
            oom_score_adj: oom_score_adj::SERVER,
            confinement: Confinement::Secluded(Seclusion { scratch: Vec::new(), executable: None }),
        };
        let EgressListeners { proxy, dns_udp, dns_tcp } = &self.listeners;
        let mut inherited = vec![control];
        for listener in [proxy, dns_udp, dns_tcp] {
            inherited.push(listener.try_clone().map_err(Error::io("listener of the egress process"))?);
        }
        inherited.push(names.into());
        let cgroup_procs_files = self.group.open_procs_files()?;
        let handles = Handles { cgroup_procs_files, inherited, ..Handles::default() };
        let spawned = skep_jail::spawn(&self.binary, &process, handles)?;
        let record = ProcessId::of(&spawned).and_then(|process| {
            let arguments = self.config.arguments.clone();
            let (boot_id, uid) = (self.boot_id.clone(), self.uid);
            let record = Record { boot_id, process, uid, protocol: EGRESS_PROTOCOL, arguments };
            record.write(&self.data_dir.egress_record())
        });
        match record {
            Ok(()) => Ok((spawned, ours)),
            Err(error) => {
                let _ = spawned.kill();
                let _ = spawned.wait(KILL_TIMEOUT);
                spawned.reap();
                Err(error)
            }
        }
    }

    /// Opens the file of names for one process: a replaced one writes to it until it has seen the signal. One that does
    /// not react is killed.
    fn lock_names(&self) -> Result<File, Error> {
        let path = self.data_dir.egress_names();
        let failed = || Error::io(path.display().to_string());
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed())?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < RELEASE_TIMEOUT + KILL_TIMEOUT => {
                    if begun.elapsed() > RELEASE_TIMEOUT {
                        self.end_replaced();
                    }
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(error) => return Err(failed()(error.into())),
            }
        }
    }

    /// Has a process accept nothing more, and lets its connections live on for a while.
    fn replace(self: &Arc<Self>, process: Jailed) -> Result<(), Error> {
        tracing::info!(pid = process.pid, "the egress process speaks another protocol and is replaced");
        process.signal(Signal::TERM)?;
        *self.replaced.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(DRAIN_TIMEOUT).await;
            if let Some(this) = this.upgrade() {
                this.end_replaced();
            }
        });
        Ok(())
    }

    fn end_replaced(&self) {
        if let Some(process) = self.replaced.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // After an error it has ended.
            let _ = process.kill();
        }
    }

    fn policies(&self) -> MutexGuard<'_, BTreeMap<Ipv4Addr, EgressPolicy>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
