//! The VMMs of a data directory, and the server's requests that concern them.

mod on_record;

use std::{
    collections::HashMap,
    net::TcpListener,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::{ErrorCode, VmId};
use skep_jail::{Tree, UidPool};
use skep_keeper_protocol::{Answer, Answerer, HeldVm, LIST_PART, Launched, Request, Usage, is_template_name};
use skep_network::Network;
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::{
    DataDir, Error, SwarmOrder,
    adopt::{self, Ground, Survivor},
    capacity::{self, Capacity, InUse},
    claims::Claim,
    clean,
    data_dir::make,
    process::boot_id,
    records::Records,
    vmm::{Belongings, Site},
};

/// Concurrent launches. Each keeps a core busy for some milliseconds; more would only slow all of them down.
const LAUNCHES: usize = 4;

/// The VMMs of a data directory, with their network and cgroups.
pub(crate) struct Vmms {
    data_dir: DataDir,
    swarm: SwarmOrder,
    binary: PathBuf,
    tree: Tree,
    network: Network,
    /// Listener of the API for VMs. `None` if another program uses the address.
    api: Option<TcpListener>,
    uids: Mutex<UidPool>,
    claim: Claim,
    held: Mutex<HashMap<VmId, Held>>,
    launches: Semaphore,
    capacity: Capacity,
    records: Records,
    boot_id: String,
}

/// An entry of the VM table.
enum Held {
    /// A launch or an end is in progress.
    Busy,
    Running(Box<Belongings>),
}

impl Vmms {
    /// Creates the network and cgroups, or takes over those of surviving VMs.
    ///
    /// # Errors
    /// This machine cannot run VMs; nothing is left behind then.
    pub(crate) async fn prepare(
        data_dir: DataDir,
        swarm: SwarmOrder,
        binary: PathBuf,
        survivors: Vec<Survivor>,
    ) -> Result<Self, Error> {
        swarm.uids.check()?;
        let claim = Claim::take(swarm.uids, &data_dir)?;
        let mut uids = UidPool::new(claim.uids);
        let made = async {
            let Ground { tree, network, living } = ground(&data_dir, &swarm, &mut uids, survivors).await?;
            let api = network.listen().await;
            let api =
                api.inspect_err(|error| tracing::error!(%error, "VMs do not reach the API: {error}")).ok();
            let capacity = capacity::measure(&swarm, &data_dir, &tree, in_use(living.values()))?;
            Ok((tree, network, api, living, capacity, boot_id()?))
        };
        match made.await {
            Ok((tree, network, api, living, capacity, boot_id)) => Ok(Self {
                uids: Mutex::new(uids),
                held: Mutex::new(
                    living.into_iter().map(|(vm, found)| (vm, Held::Running(Box::new(found)))).collect(),
                ),
                launches: Semaphore::new(LAUNCHES),
                records: Records::of(&data_dir),
                boot_id,
                capacity,
                data_dir,
                swarm,
                binary,
                tree,
                network,
                api,
                claim,
            }),
            Err(error) => {
                clean::leftovers(&data_dir)?;
                claim.release()?;
                Err(error)
            }
        }
    }

    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub(crate) fn api_listener(&self) -> Option<&TcpListener> {
        self.api.as_ref()
    }

    pub(crate) fn count(&self) -> usize {
        self.held().len()
    }

    pub(crate) fn swarm(&self) -> &SwarmOrder {
        &self.swarm
    }

    /// Performs a request and sends the answer.
    pub(crate) async fn serve(self: Arc<Self>, request: Request, answerer: Answerer) {
        let (answer, descriptors) = match self.perform(request).await {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!(%error, "a request of the server was refused: {error}");
                (Answer::Refused(error.into()), Vec::new())
            }
        };
        if let Err(error) = answerer.answer(answer, &descriptors).await {
            // The uncommitted VMs of that server are ended later, a VM that was just launched included.
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
            Request::Commit { vm } => {
                self.commit(vm).await?;
                Ok((Answer::Committed, Vec::new()))
            }
            Request::AdmitToApi { vm } => {
                self.admit_to_api(vm).await?;
                Ok((Answer::Admitted, Vec::new()))
            }
            // `serving` answers these requests.
            Request::Tls { .. }
            | Request::Helper { .. }
            | Request::Restart
            | Request::Ready
            | Request::Unable { .. } => Err(Error::NoCertificate),
            Request::List { after } => Ok((Answer::List { vms: self.list(after) }, Vec::new())),
            Request::Attach { vm } => {
                let (launched, descriptors) = self.attach(vm)?;
                Ok((Answer::Attached(launched), descriptors.into()))
            }
        }
    }

    async fn launch(self: &Arc<Self>, vm: VmId, template: String) -> Result<(Launched, Vec<OwnedFd>), Error> {
        if !is_template_name(&template) {
            return Err(Error::NotATemplate(template));
        }
        capacity::check_now(&self.data_dir, &self.swarm.limits)?;
        self.reserve(vm)?;
        let mut belongings = Belongings::default();
        let built = self.build(vm, template, &mut belongings).await;
        let origin = belongings.origin();
        let launched = match built {
            Ok(launched) => launched,
            Err(error) => {
                self.end_others_if_damaged(origin.as_ref(), &error);
                self.clear(vm, belongings).await?;
                return Err(error);
            }
        };
        self.held().insert(vm, Held::Running(Box::new(belongings)));
        // Checked again: a check that found damage in the meantime did not see this VM in the table.
        if let Err(error) = self.check_origin(origin).await {
            self.end(vm).await?;
            return Err(error);
        }
        Ok(launched)
    }

    /// Checks that the template that a VM was restored from is undamaged.
    async fn check_origin(self: &Arc<Self>, origin: Option<(String, u64)>) -> Result<(), Error> {
        let Some((template, edition)) = origin.clone() else { return Ok(()) };
        let this = Arc::clone(self);
        let checking = spawn_blocking(move || this.swarm.templates.check(&template, edition));
        let checked = checking.await.map_err(|error| Error::io("template")(std::io::Error::other(error)))?;
        checked.map_err(|failure| {
            let error = failure.into();
            self.end_others_if_damaged(origin.as_ref(), &error);
            error
        })
    }

    /// If the error says that the template is damaged, kills the uncommitted VMMs of this and earlier editions. They
    /// stay in the table until the server notices and requests their end. Committed VMs keep running.
    fn end_others_if_damaged(&self, origin: Option<&(String, u64)>, error: &Error) {
        let Some((template, damaged)) = origin.filter(|_| error.code() == ErrorCode::TemplateDamaged) else {
            return;
        };
        let is_meant = |(name, edition): (String, u64)| name == *template && edition <= *damaged;
        for (vm, held) in self.held().iter() {
            if let Held::Running(belongings) = held
                && !belongings.committed()
                && belongings.origin().is_some_and(is_meant)
                && let Err(error) = belongings.kill()
            {
                tracing::error!(%vm, %error, "VM {vm} of a damaged template does not end: {error}");
            }
        }
    }

    /// Adds a busy slot to the table.
    fn reserve(&self, vm: VmId) -> Result<(), Error> {
        let mut held = self.held();
        if held.contains_key(&vm) {
            return Err(Error::VmExists(vm));
        }
        // The server counts too, but the keeper does not rely on it.
        if held.len() >= self.capacity.max_vms as usize {
            return Err(Error::Full(self.capacity.max_vms));
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
        // The semaphore is never closed, so this never fails.
        let _permit = self.launches.acquire().await;
        let uid = *belongings.uid.insert(self.uids().take()?);
        let tap = self.network.add_tap().await?;
        belongings.port = Some(tap.port.clone());
        let this = Arc::clone(self);
        let mut taken = std::mem::take(belongings);
        let started = spawn_blocking(move || {
            let outcome = taken.start(&this.site(), vm, uid, tap, template);
            (taken, outcome)
        });
        let (taken, outcome) =
            started.await.map_err(|error| Error::io("launch")(std::io::Error::other(error)))?;
        *belongings = taken;
        let descriptors = outcome?;
        let told = belongings.told().ok_or(Error::UnknownVm(vm))?;
        Ok((told.launched, descriptors.into()))
    }

    fn list(&self, after: Option<VmId>) -> Vec<HeldVm> {
        let held = self.held();
        let running = held.values().filter_map(|held| match held {
            Held::Running(belongings) => belongings.told(),
            Held::Busy => None,
        });
        let mut vms: Vec<HeldVm> = running.filter(|told| after < Some(told.launched.vm)).collect();
        vms.sort_by_key(|told| told.launched.vm);
        vms.truncate(LIST_PART);
        vms
    }

    fn attach(&self, vm: VmId) -> Result<(Launched, [OwnedFd; 4]), Error> {
        let held = self.held();
        let Some(Held::Running(belongings)) = held.get(&vm) else { return Err(Error::UnknownVm(vm)) };
        match (belongings.told(), belongings.attach()?) {
            (Some(told), Some(descriptors)) => Ok((told.launched, descriptors)),
            _ => Err(Error::Ended(vm)),
        }
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

    /// Removes a VM's resources and its slot. After an error the slot stays, so that the end can be requested again.
    async fn clear(self: &Arc<Self>, vm: VmId, belongings: Belongings) -> Result<bool, Error> {
        let this = Arc::clone(self);
        let cleared = spawn_blocking(move || {
            let mut belongings = belongings;
            let outcome = belongings.clear(vm, &this.records);
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
                tracing::error!(%vm, %error, "VM {vm} could not be removed: {error}");
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

    /// Ends the matching VMs. No other request may be in progress.
    pub(crate) async fn end_those(self: &Arc<Self>, meant: impl Fn(&Belongings) -> bool) {
        let all: Vec<VmId> = {
            let held = self.held();
            let meant = |held: &Held| matches!(held, Held::Running(belongings) if meant(belongings));
            held.iter().filter(|(_, held)| meant(held)).map(|(vm, _)| *vm).collect()
        };
        let ends: Vec<_> = all
            .into_iter()
            .map(|vm| {
                let this = Arc::clone(self);
                tokio::spawn(async move { this.end(vm).await })
            })
            .collect();
        for end in ends {
            // The error is already logged. The end of the cgroup tree or the next keeper removes what is left.
            let _ = end.await;
        }
    }

    /// Removes network and cgroups, and kills the processes that are still in them.
    pub(crate) async fn close(self) -> Result<(), Error> {
        let Self { tree, network, claim, records, .. } = self;
        let network = network.close().await;
        let tree = spawn_blocking(move || tree.remove()).await;
        tree.map_err(|error| Error::io("end of the control groups")(std::io::Error::other(error)))??;
        network?;
        records.remove_all_but(|_| false)?;
        claim.release()
    }

    fn site(&self) -> Site<'_> {
        Site {
            data_dir: &self.data_dir,
            swarm: &self.swarm,
            tree: &self.tree,
            binary: &self.binary,
            records: &self.records,
            boot_id: &self.boot_id,
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<VmId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uids(&self) -> MutexGuard<'_, UidPool> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adopts the surviving VMs with their network and cgroups. If that fails, ends them and creates both anew.
async fn ground(
    data_dir: &DataDir,
    swarm: &SwarmOrder,
    uids: &mut UidPool,
    survivors: Vec<Survivor>,
) -> Result<Ground, Error> {
    if !survivors.is_empty() {
        let fresh = uids.clone();
        match adopt::adopt(data_dir, swarm, uids, survivors).await {
            Ok(ground) => return Ok(ground),
            Err(error) => {
                tracing::warn!(%error, "the VMs of an earlier keeper cannot be taken over and end: {error}");
                clean::leftovers(data_dir)?;
                make(&data_dir.sockets(), 0o700)?;
                *uids = fresh;
            }
        }
    }
    let tree = Tree::create(&data_dir.name())?;
    if let Err(error) = clean::record_cgroups(data_dir, &tree) {
        // A later cleanup finds only recorded cgroups.
        tree.remove()?;
        return Err(error);
    }
    let network = Network::create(&data_dir.name(), swarm.subnet).await?;
    Ok(Ground { tree, network, living: HashMap::new() })
}

fn in_use<'a>(living: impl Iterator<Item = &'a Belongings>) -> InUse {
    living.map(Belongings::usage).fold(InUse::default(), |sum, used| InUse {
        memory_bytes: sum.memory_bytes + used.memory_bytes,
        disk_bytes: sum.disk_bytes + used.disk_bytes,
    })
}
