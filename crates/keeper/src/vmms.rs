//! The VMMs of a data directory, and what the server may ask about them.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::VmId;
use skep_jail::{Tree, UidPool};
use skep_keeper_protocol::{Answer, Answerer, Launched, Request, Usage, is_template_name};
use skep_network::{Network, Port};
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::{
    DataDir, Error, SwarmOrder,
    claims::Claim,
    clean,
    vmm::{Belongings, Running, Site},
};

/// Launches at the same time. Each keeps a core busy for some milliseconds; more would only make all of them slow.
const LAUNCHES: usize = 4;

/// The VMMs of a data directory, with the network and the control groups that they live in.
pub(crate) struct Vmms {
    data_dir: DataDir,
    swarm: SwarmOrder,
    binary: PathBuf,
    tree: Tree,
    network: Network,
    uids: Mutex<UidPool>,
    claim: Claim,
    held: Mutex<HashMap<VmId, Held>>,
    launches: Semaphore,
    max_vms: u32,
}

/// A VM's place in the table.
enum Held {
    /// Being launched, or ended.
    Busy,
    Running(Box<Belongings>),
}

impl Vmms {
    /// Makes network and control groups.
    ///
    /// # Errors
    /// This machine lacks something; nothing is left then.
    pub(crate) async fn prepare(
        data_dir: DataDir,
        swarm: SwarmOrder,
        binary: PathBuf,
        max_vms: u32,
    ) -> Result<Self, Error> {
        swarm.uids.check()?;
        let claim = Claim::take(swarm.uids, &data_dir)?;
        let made = async {
            let tree = Tree::create(&data_dir.name())?;
            if let Err(error) = clean::record_cgroups(&data_dir, &tree) {
                // What is not recorded is not found again.
                tree.remove()?;
                return Err(error);
            }
            let network = Network::create(&data_dir.name(), swarm.subnet).await?;
            Ok((tree, network))
        };
        match made.await {
            Ok((tree, network)) => Ok(Self {
                uids: Mutex::new(UidPool::new(claim.uids)),
                held: Mutex::new(HashMap::new()),
                launches: Semaphore::new(LAUNCHES),
                max_vms,
                data_dir,
                swarm,
                binary,
                tree,
                network,
                claim,
            }),
            Err(error) => {
                clean::leftovers(&data_dir)?;
                claim.release()?;
                Err(error)
            }
        }
    }

    pub(crate) fn swarm(&self) -> &SwarmOrder {
        &self.swarm
    }

    /// Does what is asked and answers.
    pub(crate) async fn serve(self: Arc<Self>, request: Request, answerer: Answerer) {
        let (answer, descriptors) = match self.perform(request).await {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!(%error, "a request of the server was refused: {error}");
                (Answer::Refused(error.into()), Vec::new())
            }
        };
        if let Err(error) = answerer.answer(answer, &descriptors).await {
            // Then all its VMs end, and this one with them.
            tracing::debug!(%error, "the server went away before its answer");
        }
    }

    async fn perform(self: &Arc<Self>, request: Request) -> Result<(Answer, Vec<OwnedFd>), Error> {
        match request {
            Request::Launch { vm, template } => {
                let (launched, descriptors) = self.launch(vm, template).await?;
                Ok((Answer::Launched(launched), descriptors))
            }
            Request::End { vm } => {
                let out_of_memory = self.end(vm).await?;
                Ok((Answer::Ended { out_of_memory }, Vec::new()))
            }
            Request::Usage { vm } => Ok((Answer::Usage(self.usage(vm)?), Vec::new())),
            Request::List => Ok((Answer::List { vms: self.held().keys().copied().collect() }, Vec::new())),
        }
    }

    async fn launch(self: &Arc<Self>, vm: VmId, template: String) -> Result<(Launched, Vec<OwnedFd>), Error> {
        if !is_template_name(&template) {
            return Err(Error::NotATemplate(template));
        }
        self.reserve(vm)?;
        let mut belongings = Belongings::default();
        match self.build(vm, template, &mut belongings).await {
            Ok(launched) => {
                self.held().insert(vm, Held::Running(Box::new(belongings)));
                Ok(launched)
            }
            Err(error) => {
                self.clear(vm, belongings).await?;
                Err(error)
            }
        }
    }

    /// Takes a place in the table.
    fn reserve(&self, vm: VmId) -> Result<(), Error> {
        let mut held = self.held();
        if held.contains_key(&vm) {
            return Err(Error::VmExists(vm));
        }
        // The server counts too; one that lies must not fill this machine.
        if held.len() >= self.max_vms as usize {
            return Err(Error::Full(self.max_vms));
        }
        held.insert(vm, Held::Busy);
        Ok(())
    }

    async fn build(
        self: &Arc<Self>,
        vm: VmId,
        template: String,
        belongings: &mut Belongings,
    ) -> Result<(Launched, Vec<OwnedFd>), Error> {
        // Never closed, so this never fails.
        let _permit = self.launches.acquire().await;
        let uid = *belongings.uid.insert(self.uids().take()?);
        let tap = self.network.add_tap().await?;
        let port = belongings.port.insert(tap.port.clone()).clone();
        let this = Arc::clone(self);
        let mut taken = std::mem::take(belongings);
        let started = spawn_blocking(move || {
            let opened = this.swarm.templates.open(&template).map_err(Error::from);
            let outcome = opened.and_then(|template| taken.start(&this.site(), vm, uid, tap, template));
            (taken, outcome)
        });
        let (taken, outcome) =
            started.await.map_err(|error| Error::io("launch")(std::io::Error::other(error)))?;
        *belongings = taken;
        let Running { pid, template_key, vcpus, memory_mb, descriptors } = outcome?;
        let Port { ip, prefix_len, gateway, mac, .. } = port;
        let launched = Launched { vm, pid, ip, prefix_len, gateway, mac, template_key, vcpus, memory_mb };
        Ok((launched, descriptors.into()))
    }

    async fn end(self: &Arc<Self>, vm: VmId) -> Result<bool, Error> {
        let belongings = {
            let mut held = self.held();
            match held.insert(vm, Held::Busy) {
                Some(Held::Running(belongings)) => *belongings,
                Some(Held::Busy) => return Err(Error::UnknownVm(vm)),
                None => {
                    held.remove(&vm);
                    return Err(Error::UnknownVm(vm));
                }
            }
        };
        self.clear(vm, belongings).await
    }

    /// Clears away, and forgets the VM when nothing of it is left; else it can be ended again.
    async fn clear(self: &Arc<Self>, vm: VmId, belongings: Belongings) -> Result<bool, Error> {
        let cleared = spawn_blocking(move || {
            let mut belongings = belongings;
            let outcome = belongings.clear(vm);
            (belongings, outcome)
        });
        let (mut belongings, outcome) =
            cleared.await.map_err(|error| Error::io("end of a VM")(std::io::Error::other(error)))?;
        let outcome = match (outcome, belongings.port.clone()) {
            (Ok(()), Some(port)) => self.network.remove(port).await.map_err(Error::from),
            (outcome, _) => outcome,
        };
        match outcome {
            Ok(()) => {
                if let Some(uid) = belongings.uid.take() {
                    self.uids().give_back(uid);
                }
                self.held().remove(&vm);
                Ok(belongings.out_of_memory())
            }
            Err(error) => {
                tracing::error!(%vm, %error, "VM {vm} could not be cleared away: {error}");
                self.held().insert(vm, Held::Running(Box::new(belongings)));
                Err(error)
            }
        }
    }

    fn usage(&self, vm: VmId) -> Result<Usage, Error> {
        match self.held().get(&vm) {
            Some(Held::Running(belongings)) => Ok(belongings.usage()),
            _ => Err(Error::UnknownVm(vm)),
        }
    }

    /// Ends all. Nothing may be under way any more.
    pub(crate) async fn end_all(self: &Arc<Self>) {
        let all: Vec<VmId> = self.held().keys().copied().collect();
        let ends: Vec<_> = all
            .into_iter()
            .map(|vm| {
                let this = Arc::clone(self);
                tokio::spawn(async move { this.end(vm).await })
            })
            .collect();
        for end in ends {
            // An error was logged, and what is left goes with the tree.
            let _ = end.await;
        }
    }

    /// Takes network and control groups away, whoever still lives in them.
    pub(crate) async fn close(self) -> Result<(), Error> {
        let Self { tree, network, claim, .. } = self;
        let network = network.close().await;
        let tree = spawn_blocking(move || tree.remove()).await;
        tree.map_err(|error| Error::io("end of the control groups")(std::io::Error::other(error)))??;
        network?;
        claim.release()
    }

    fn site(&self) -> Site<'_> {
        Site { data_dir: &self.data_dir, swarm: &self.swarm, tree: &self.tree, binary: &self.binary }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<VmId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uids(&self) -> MutexGuard<'_, UidPool> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
