//! The egress process, which connects VMs to hosts outside. It has a user, a control group and a PID namespace of its
//! own, and no privilege.
//!
//! The keeper has the policies and keeps the listeners open: when the process ends, it starts another one, and
//! connections of VMs wait meanwhile. The process outlives the keeper with the policies that it has, as VMs do, and the
//! next keeper adopts it: with its listeners, and giving it all policies again. One that speaks another protocol is
//! asked by a signal to accept nothing more, and another process takes its place with the same listeners.

mod earlier;
mod name_servers;
mod process;
mod record;
mod supervisor;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use skep_api::egress::EgressReport;
use skep_jail::{Cgroup, CgroupTree, Jailed, UidPool};
use skep_keeper_protocol::{EgressAnswer, EgressRequest, EgressTotals, VmEgress};
use skep_network::{EgressListeners, Network};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use self::{
    earlier::{EarlierProcess, connect, find_earlier},
    name_servers::NameServers,
    process::Running,
    record::Disposition,
};
use crate::{DataDir, EgressConfig, Error, data_dir::remove_file, process_id::boot_id};

/// The name of the control group of the egress process.
pub(crate) const GROUP: &str = "egress";
/// Limit of processes and threads.
const PIDS: u64 = 16;
const OTHER_ANSWER: Error = Error::NoEgress("the egress process gave another answer");
/// How long a change of a policy waits for a process that is being started.
const START_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Egress {
    shared: Arc<Shared>,
    supervisor: JoinHandle<()>,
    name_server_watch: JoinHandle<()>,
}

/// The policies of VMs, by address.
type Policies = BTreeMap<Ipv4Addr, VmEgress>;

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
    policies: Mutex<Policies>,
    /// Only one policy is changed at a time, so that the process has the last one.
    changing: tokio::sync::Mutex<()>,
    /// The running process, once it has all policies.
    running: watch::Sender<Option<Arc<Running>>>,
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
        policies: Vec<(Ipv4Addr, VmEgress)>,
    ) -> Result<Self, Error> {
        let boot_id = boot_id()?;
        let EarlierProcess { group, process, listeners } = find_earlier(config, &parts, &boot_id)?;
        let listeners = match listeners {
            Some(listeners) => listeners,
            None => parts.network.listen_for_egress().await?,
        };
        let (adopted, replaced, uid) = match process {
            Some((Disposition::Adopt, process, uid)) => {
                (Some(process), None, Some(uid).filter(|uid| uids.adopt(*uid)))
            }
            Some((Disposition::Replace, process, uid)) => {
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
            changing: tokio::sync::Mutex::default(),
            running: watch::Sender::default(),
        });
        if let Some(process) = replaced {
            shared.replace(process)?;
        }
        let supervisor = tokio::spawn(Arc::clone(&shared).supervise(adopted));
        let name_server_watch = tokio::spawn(Arc::clone(&shared).follow_name_servers());
        Ok(Self { shared, supervisor, name_server_watch })
    }

    /// Sets the policy of the VM at this address, and waits until the process applies it.
    pub(crate) async fn set(&self, vm: Ipv4Addr, egress: VmEgress) -> Result<(), Error> {
        let _changing = self.shared.changing.lock().await;
        let before = self.shared.policies().insert(vm, egress.clone());
        if before.as_ref().is_some_and(|before| before.policy != egress.policy) {
            // It cannot be asked to end what the new policy forbids.
            self.shared.end_replaced();
        }
        let applied = self.request(EgressRequest::Set { vm, egress }).await;
        if applied.is_err() {
            self.shared.policies().insert(vm, before.unwrap_or_default());
            // It may have the policy without having answered. The next process gets the policy from before.
            if let Some(running) = self.shared.running.borrow().clone() {
                let _ = running.process.kill();
            }
        }
        applied.map(drop)
    }

    /// Forgets the VM at this address, which has ended. The packet filter stops its connections.
    pub(crate) async fn forget(&self, vm: Ipv4Addr) {
        let _changing = self.shared.changing.lock().await;
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

impl Shared {
    fn policies(&self) -> MutexGuard<'_, Policies> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
