//! The egress process, which connects VMs to hosts outside. It has a user, a control group and a PID namespace of its
//! own, and no privilege.
//!
//! The keeper has the policies and keeps the listeners open: when the process ends, it starts another one, and
//! connections of VMs wait meanwhile. The process ends with the keeper's socket.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use skep_api::egress::{EgressPolicy, EgressReport};
use skep_jail::{
    Cgroup, CgroupLimits, CgroupTree, Confinement, Handles, Jailed, ProcessSpec, Seclusion, UidPool,
    oom_score_adj, stage::SELF_EXE,
};
use skep_keeper_protocol::{EgressAnswer, EgressKeeperEnd, EgressRequest};
use skep_network::{EgressListeners, Network};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use crate::{DataDir, EgressConfig, Error};

/// The control group.
const GROUP: &str = "egress";
/// Limit of processes and threads.
const PIDS: u64 = 16;
/// Between the end of a process and the start of the next one.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// How long a change of a policy waits for a process that is being started.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A killed process usually exits within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Egress {
    shared: Arc<Shared>,
    supervisor: JoinHandle<()>,
    /// Only one policy is changed at a time, so that the process has the last one.
    changing: tokio::sync::Mutex<()>,
}

struct Shared {
    binary: PathBuf,
    config: EgressConfig,
    uid: u32,
    group: Cgroup,
    listeners: EgressListeners,
    names: PathBuf,
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
    /// Starts the process with these policies of VMs, without waiting for it.
    pub(crate) async fn start(
        config: &EgressConfig,
        parts: EgressParts<'_>,
        uids: &mut UidPool,
        policies: Vec<(Ipv4Addr, EgressPolicy)>,
    ) -> Result<Self, Error> {
        let listeners = parts.network.listen_for_egress().await?;
        let limits = CgroupLimits {
            memory_bytes: config.memory_bytes,
            pids: PIDS,
            cpu_weight: 100,
            cpu_percent: None,
        };
        let shared = Arc::new(Shared {
            binary: parts.binary.to_owned(),
            config: config.clone(),
            uid: uids.take()?,
            group: parts.tree.create_group(GROUP, &limits)?,
            listeners,
            names: parts.data_dir.egress_names(),
            policies: Mutex::new(policies.into_iter().collect()),
            running: watch::Sender::default(),
        });
        let supervisor = tokio::spawn(Arc::clone(&shared).supervise());
        Ok(Self { shared, supervisor, changing: tokio::sync::Mutex::default() })
    }

    /// Sets the policy of the VM at this address, and waits until the process applies it.
    pub(crate) async fn set(&self, vm: Ipv4Addr, policy: EgressPolicy) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let before = self.shared.policies().insert(vm, policy.clone());
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
            EgressAnswer::Done => Err(Error::NoEgress("the egress process gave another answer")),
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

impl Drop for Egress {
    fn drop(&mut self) {
        self.supervisor.abort();
        if let Some(running) = self.shared.running.send_replace(None) {
            running.end();
        }
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
    async fn supervise(self: Arc<Self>) {
        loop {
            match self.run_once().await {
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
        let watched = process.pidfd.try_clone().map_err(Error::io("pidfd of the egress process"))?;
        let running = Arc::new(Running { process, control: EgressKeeperEnd::new(socket)? });
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

    /// Gives the process all policies. Those that change meanwhile are sent again by whoever changes them.
    async fn hand_over(&self, running: &Running) -> Option<()> {
        let policies = self.policies().clone();
        for (vm, policy) in policies {
            running.request(EgressRequest::Set { vm, policy }).await?;
        }
        running.request(EgressRequest::Serve).await.map(drop)
    }

    fn spawn(&self) -> Result<(Jailed, OwnedFd), Error> {
        let (ours, theirs) = skep_keeper_protocol::pair()?;
        let mut options = OpenOptions::new();
        let names = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.names);
        let names = names.map_err(Error::io(self.names.display().to_string()))?;
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
        let mut inherited = vec![theirs];
        for listener in [proxy, dns_udp, dns_tcp] {
            inherited.push(listener.try_clone().map_err(Error::io("listener of the egress process"))?);
        }
        inherited.push(names.into());
        let cgroup_procs_files = self.group.open_procs_files()?;
        let handles = Handles { cgroup_procs_files, inherited, ..Handles::default() };
        Ok((skep_jail::spawn(&self.binary, &process, handles)?, ours))
    }

    fn policies(&self) -> MutexGuard<'_, BTreeMap<Ipv4Addr, EgressPolicy>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
