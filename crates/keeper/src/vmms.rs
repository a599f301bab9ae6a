//! The VMMs of a data directory, and the server's requests that concern them.

mod adopted;
mod captures;
mod launch;
mod memory;
mod record_updates;
mod templates;

use std::{
    collections::HashMap,
    net::TcpListener,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::VmId;
use skep_jail::{CgroupTree, UidPool};
use skep_keeper_protocol::{Answer, Answerer, HeldVm, LIST_PAGE_SIZE, Launched, OutOfMemory, Request, Usage};
use skep_network::{Network, Traffic};
use tokio::{sync::Semaphore, task::spawn_blocking};

use adopted::{adopt_or_create, in_use};
use captures::Captures;

use crate::{
    DataDir, Error, SwarmConfig,
    adopt::{RunningVm, SwarmResources},
    capacity::{self, Capacity},
    cleanup,
    egress::{Egress, EgressParts},
    memory::MemoryAdmissions,
    process_id::boot_id,
    records::Records,
    uid_blocks::UidBlock,
    vmm::{LaunchContext, VmResources},
};

/// Concurrent launches. Each keeps a core busy for some milliseconds; more would only slow all of them down.
const MAX_CONCURRENT_LAUNCHES: usize = 4;

/// The VMMs of a data directory, with their network and cgroups.
pub(crate) struct Vmms {
    data_dir: DataDir,
    swarm: SwarmConfig,
    binary: PathBuf,
    tree: CgroupTree,
    network: Network,
    /// Listener of the API for VMs. `None` if another program uses the address.
    api: Option<TcpListener>,
    /// `None` if VMs reach nothing outside.
    egress: Option<Egress>,
    uids: Mutex<UidPool>,
    uid_block: UidBlock,
    slots: Mutex<HashMap<VmId, Slot>>,
    captures: Mutex<Captures>,
    admissions: MemoryAdmissions,
    launches: Semaphore,
    capacity: Capacity,
    records: Records,
    /// Serializes changes of records.
    record_changes: Mutex<()>,
    boot_id: String,
}

/// An entry of the VM table.
enum Slot {
    /// A launch or an end is in progress.
    Busy,
    Running(Box<VmResources>),
}

impl Vmms {
    /// Creates the network and cgroups, or takes over those of running VMs.
    ///
    /// # Errors
    /// This machine cannot run VMs; nothing is left behind then.
    pub(crate) async fn prepare(
        data_dir: DataDir,
        swarm: SwarmConfig,
        binary: PathBuf,
        running_vms: Vec<RunningVm>,
    ) -> Result<Self, Error> {
        swarm.uids.check()?;
        let claim = UidBlock::take(swarm.uids, &data_dir)?;
        let mut uids = UidPool::new(claim.uids);
        let made = async {
            let SwarmResources { tree, network, living } =
                adopt_or_create(&data_dir, &swarm, &mut uids, running_vms).await?;
            let api = network.listen().await;
            let api =
                api.inspect_err(|error| tracing::error!(%error, "VMs do not reach the API: {error}")).ok();
            let policies = living.values().filter_map(VmResources::egress).collect();
            let parts = EgressParts { data_dir: &data_dir, binary: &binary, tree: &tree, network: &network };
            let egress = match &swarm.egress {
                Some(config) => Egress::start(config, parts, &mut uids, policies).await.map(Some),
                None => Ok(None),
            };
            let egress = egress.unwrap_or_else(|error| {
                tracing::error!(%error, "VMs reach nothing outside: {error}");
                None
            });
            let capacity = capacity::measure(&swarm, &tree, in_use(living.values().map(VmResources::usage)))?;
            Ok((tree, network, api, egress, living, capacity, boot_id()?))
        };
        match made.await {
            Ok((tree, network, api, egress, living, capacity, boot_id)) => Ok(Self {
                uids: Mutex::new(uids),
                slots: Mutex::new(running_slots(living)),
                captures: Mutex::default(),
                admissions: MemoryAdmissions::default(),
                launches: Semaphore::new(MAX_CONCURRENT_LAUNCHES),
                records: Records::of(&data_dir),
                record_changes: Mutex::default(),
                boot_id,
                capacity,
                data_dir,
                swarm,
                binary,
                tree,
                network,
                api,
                egress,
                uid_block: claim,
            }),
            Err(error) => {
                cleanup::remove_leftovers(&data_dir)?;
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
        self.slots().len()
    }

    pub(crate) fn swarm(&self) -> &SwarmConfig {
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
            Request::Launch { vm, template, ip } => {
                let (launched, descriptors) = self.launch(vm, template, ip).await?;
                Ok((Answer::Launched(launched), descriptors))
            }
            Request::Attach { vm } => {
                let (launched, descriptors) = self.attach(vm)?;
                Ok((Answer::Attached(launched), descriptors.into()))
            }
            Request::PrepareCapture { vm, capture, then } => {
                Ok((Answer::CapturePrepared, vec![self.prepare_capture(vm, capture, then).await?]))
            }
            request => Ok((self.answer(request).await?, Vec::new())),
        }
    }

    /// Performs a request whose answer has no descriptors.
    #[expect(clippy::too_many_lines, reason = "one arm per request")]
    async fn answer(self: &Arc<Self>, request: Request) -> Result<Answer, Error> {
        Ok(match request {
            Request::End { vm } => Answer::Ended { out_of_memory: self.end(vm).await? },
            Request::Usage { vm } => Answer::Usage(self.usage(vm).await?),
            Request::Memory => Answer::Memory(self.memory()?),
            Request::List { after } => Answer::List { vms: self.list(after) },
            Request::Commit { vm } => {
                self.commit(vm).await?;
                Answer::Committed
            }
            Request::AdmitToApi { vm } => {
                self.admit_to_api(vm).await?;
                Answer::Admitted
            }
            Request::BuildTemplate { template, parent, size } => {
                self.build_template(template, parent, size)?;
                Answer::Building
            }
            Request::BootDisk { template, snapshot } => {
                self.boot_disk(template, snapshot)?;
                Answer::Building
            }
            Request::TemplateStatus { template } => Answer::Template(self.template_status(template)?),
            Request::ListTemplates { after } => Answer::Templates { templates: self.list_templates(after) },
            Request::RemoveTemplate { template } => {
                self.remove_template(template).await?;
                Answer::TemplateRemoved
            }
            Request::SetEgress { vm, egress } => {
                self.set_egress(vm, egress).await?;
                Answer::EgressSet
            }
            Request::EgressReport { vm } => Answer::EgressReport(self.egress_report(vm).await?),
            Request::EgressTotals => Answer::EgressTotals(self.egress_totals().await?),
            Request::Capture { capture } => {
                self.capture(capture).await?;
                Answer::Captured
            }
            Request::StoreCapture { capture, purpose } => {
                Answer::Template(self.store_capture(capture, purpose).await?)
            }
            Request::ReserveAddress { ip } => {
                self.network.reserve(ip).await?;
                Answer::AddressReserved
            }
            Request::EndReservation { ip } => {
                self.network.end_reservation(ip).await?;
                Answer::ReservationEnded
            }
            Request::DropCapture { capture } => {
                self.drop_capture(capture);
                Answer::CaptureDropped
            }
            // `perform` and `serving` answer these requests.
            Request::Launch { .. }
            | Request::Attach { .. }
            | Request::PrepareCapture { .. }
            | Request::Tls { .. }
            | Request::Helper { .. }
            | Request::Restart
            | Request::Ready
            | Request::Serving
            | Request::Unable { .. } => return Err(Error::NoCertificate),
        })
    }

    fn list(&self, after: Option<VmId>) -> Vec<HeldVm> {
        let held = self.slots();
        let running = held.values().filter_map(|held| match held {
            Slot::Running(belongings) => belongings.describe(),
            Slot::Busy => None,
        });
        let mut vms: Vec<HeldVm> = running.filter(|vm| after < Some(vm.launched.vm)).collect();
        vms.sort_by_key(|vm| vm.launched.vm);
        vms.truncate(LIST_PAGE_SIZE);
        vms
    }

    fn attach(&self, vm: VmId) -> Result<(Launched, [OwnedFd; 4]), Error> {
        let held = self.slots();
        let Some(Slot::Running(belongings)) = held.get(&vm) else { return Err(Error::UnknownVm(vm)) };
        match (belongings.describe(), belongings.attach()?) {
            (Some(description), Some(descriptors)) => Ok((description.launched, descriptors)),
            _ => Err(Error::Ended(vm)),
        }
    }

    async fn end(self: &Arc<Self>, vm: VmId) -> Result<Option<OutOfMemory>, Error> {
        let belongings = {
            let mut held = self.slots();
            match held.insert(vm, Slot::Busy) {
                Some(Slot::Running(belongings)) => *belongings,
                Some(Slot::Busy) => return Err(Error::UnknownVm(vm)),
                None => {
                    held.remove(&vm);
                    return Err(Error::UnknownVm(vm));
                }
            }
        };
        self.clear(vm, belongings).await
    }

    /// Removes a VM's resources and its slot. After an error the slot stays, so that the end can be requested again.
    async fn clear(
        self: &Arc<Self>,
        vm: VmId,
        belongings: VmResources,
    ) -> Result<Option<OutOfMemory>, Error> {
        let this = Arc::clone(self);
        let cleared = spawn_blocking(move || {
            let mut belongings = belongings;
            let outcome = belongings.release(vm, &this.records);
            (belongings, outcome)
        });
        let (mut belongings, outcome) =
            cleared.await.map_err(|error| Error::io("end of a VM")(std::io::Error::other(error)))?;
        let outcome = match (outcome, belongings.port.clone()) {
            (Ok(()), Some(port)) => {
                self.forget_egress(port.ip).await;
                self.network.remove(port).await.map_err(Error::from)
            }
            (outcome, _) => outcome,
        };
        match outcome {
            Ok(()) => {
                if let Some(uid) = belongings.uid.take() {
                    self.uids().release(uid);
                }
                self.slots().remove(&vm);
                Ok(belongings.out_of_memory())
            }
            Err(error) => {
                tracing::error!(%vm, %error, "VM {vm} could not be removed: {error}");
                self.slots().insert(vm, Slot::Running(Box::new(belongings)));
                Err(error)
            }
        }
    }

    async fn usage(&self, vm: VmId) -> Result<Usage, Error> {
        let (usage, port) = match self.slots().get(&vm) {
            Some(Slot::Running(belongings)) => (belongings.usage(), belongings.port.clone()),
            _ => return Err(Error::UnknownVm(vm)),
        };
        let Some(port) = port else { return Ok(usage) };
        let Traffic { received_bytes, sent_bytes } = self.network.traffic(port).await?;
        Ok(Usage { received_bytes, sent_bytes, ..usage })
    }

    /// Ends the matching VMs. No other request may be in progress.
    pub(crate) async fn end_matching(self: &Arc<Self>, meant: impl Fn(&VmResources) -> bool) {
        let all: Vec<VmId> = {
            let held = self.slots();
            let meant = |held: &Slot| matches!(held, Slot::Running(belongings) if meant(belongings));
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
        let Self { tree, network, egress, uid_block: claim, records, .. } = self;
        if let Some(egress) = egress {
            let end = spawn_blocking(move || egress.end()).await;
            end.map_err(|error| Error::io("end of the egress process")(std::io::Error::other(error)))??;
        }
        let network = network.close().await;
        let tree = spawn_blocking(move || tree.remove()).await;
        tree.map_err(|error| Error::io("end of the control groups")(std::io::Error::other(error)))??;
        network?;
        records.remove_all_but(|_| false)?;
        claim.release()
    }

    fn site(&self) -> LaunchContext<'_> {
        LaunchContext {
            data_dir: &self.data_dir,
            swarm: &self.swarm,
            tree: &self.tree,
            binary: &self.binary,
            records: &self.records,
            boot_id: &self.boot_id,
            admit_load: Box::new(move |bytes| self.admit_load(bytes)),
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<VmId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn captures(&self) -> MutexGuard<'_, Captures> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uids(&self) -> MutexGuard<'_, UidPool> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn running_slots(living: HashMap<VmId, VmResources>) -> HashMap<VmId, Slot> {
    living.into_iter().map(|(vm, resources)| (vm, Slot::Running(Box::new(resources)))).collect()
}
