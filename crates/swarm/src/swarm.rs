//! The interface of the swarm for the server.

mod awake;
mod calls;
mod copies;
mod disk;
mod disk_boot;
mod ends;
mod metrics;
mod pause;
mod record;
mod reserve;
mod status;
mod templates;

use std::{net::SocketAddr, sync::Arc};

use skep_api::{
    AccountId, TemplateId, VmId, VmRef,
    egress::{EgressPolicy, EgressReport, EgressTry},
    keys::Limits,
    swarm::{BootAnswer, Console, EngineReport, Vm},
};
use skep_engine::Driver;
use skep_keeper_protocol::ServerEnd;
use skep_store::{TemplateStore, TicketStore, VmChange, VmStore};

pub use self::awake::AwakeVm;
use crate::{
    BootFrom, BootSpec, Error, Observer, adopt,
    api_access::ApiAccess,
    boot::Booter,
    budget::Budget,
    captures::CaptureCounts,
    disk_quota::{DiskQuotas, WorkspaceFiles},
    disk_traffic::DiskTotals,
    history::MetricsHistory,
    idle,
    pool::{Pool, default_size},
    refill,
    registry::Registry,
    restore::Restorer,
    template::{BootState, BootTemplate, Templates},
    usage::UsageSamples,
    vm::VmContext,
};

/// Dependencies and limits of a swarm.
pub struct SwarmParts {
    pub keeper: ServerEnd,
    pub driver: Arc<dyn Driver>,
    pub store: Arc<dyn VmStore>,
    /// Read for the file in a VM that is booted for a ticket.
    pub tickets: Arc<dyn TicketStore>,
    /// Read for the template of a boot.
    pub templates: Arc<dyn TemplateStore>,
    /// Shown in the status.
    pub engine: EngineReport,
    /// Limit of concurrent VMs.
    pub max_vms: u32,
    /// Memory for VMs, in MiB.
    pub memory_mb: u64,
    /// Memory that VMs may be promised in total, in MiB.
    pub promises_mb: u64,
    /// Memory of a guest of the base template, in MiB.
    pub guest_memory_mb: u64,
    /// Memory of each VM in addition to its guest's, in MiB.
    pub overhead_mb: u64,
    /// Target size of the pool. `None`: a default that depends on processors and capacity.
    pub pool_size: Option<u32>,
    /// Address at which guests reach the API. `None` if they cannot.
    pub api: Option<SocketAddr>,
    pub observer: Arc<dyn Observer>,
    /// What the files of accounts occupy, which counts for their limit too.
    pub workspaces: Arc<dyn WorkspaceFiles>,
}

/// All VMs of this server. Cheap to clone.
#[derive(Clone)]
pub struct Swarm(Arc<Inner>);

struct Inner {
    booter: Booter,
    surroundings: VmContext,
    tickets: Arc<dyn TicketStore>,
    templates: Templates,
    budget: Arc<Budget>,
    engine: EngineReport,
    api: ApiAccess,
    usage: UsageSamples,
    history: MetricsHistory,
}

impl Swarm {
    /// Starts the swarm and adopts the VMs of an earlier server that still run. The others are recorded as lost.
    ///
    /// # Errors
    /// The keeper or the store is not available.
    pub async fn start(parts: SwarmParts) -> Result<Self, Error> {
        let budget =
            Arc::new(Budget::new(parts.max_vms, parts.memory_mb, parts.promises_mb, parts.overhead_mb));
        let (usage, registry) = (UsageSamples::default(), Arc::new(Registry::default()));
        let disk_quotas = DiskQuotas::new(
            parts.keeper.clone(),
            Arc::clone(&budget),
            Arc::clone(&registry),
            Arc::clone(&parts.templates),
            parts.workspaces,
            usage.clone(),
        );
        let surroundings = VmContext {
            keeper: parts.keeper.clone(),
            driver: Arc::clone(&parts.driver),
            budget: Arc::clone(&budget),
            store: parts.store,
            registry: Arc::clone(&registry),
            observer: parts.observer,
            disk_totals: DiskTotals::default(),
            disk_quotas,
            captures: CaptureCounts::default(),
        };
        let api = ApiAccess::new(parts.keeper.clone(), parts.api);
        let history = MetricsHistory::default();
        let restorer = Arc::new(Restorer { keeper: parts.keeper, driver: parts.driver });
        adopt::adopt_vms(&restorer, &surroundings, &budget).await?;
        let size = parts.pool_size.unwrap_or_else(|| default_size(parts.max_vms));
        let base = Arc::new(BootTemplate::base(parts.guest_memory_mb));
        let pool = Pool::new(restorer, budget.clone(), size, Arc::clone(&base));
        let templates = Templates { store: parts.templates, base };
        tokio::spawn(usage.clone().run(pool.clone(), registry, history.clone()));
        tokio::spawn(refill::run(pool.clone()));
        tokio::spawn(idle::run(surroundings.clone()));
        let (tickets, engine) = (parts.tickets, parts.engine);
        let booter = Booter { pool };
        Ok(Self(Arc::new(Inner {
            booter,
            surroundings,
            tickets,
            templates,
            budget,
            engine,
            api,
            usage,
            history,
        })))
    }

    /// Boots all VMs of a request, or none. Copies of a VM begin with its files, memory and processes, under identities of their
    /// own; the VM stands still while it is copied.
    ///
    /// # Errors
    /// A template that is unknown or not ready, quota, capacity, or a VM that did not start; for copies also those of
    /// [`Swarm::snapshot`].
    pub async fn boot(
        &self,
        account: &AccountId,
        limits: &Limits,
        mut order: BootSpec,
    ) -> Result<BootAnswer, Error> {
        // Kept until it is copied.
        let mut awake_parent = None;
        let template = match &order.source {
            BootFrom::Template { reference, memory } => {
                self.0.templates.find(*account, reference, *memory).await?
            }
            BootFrom::Vm { vm, keeps_metadata } => {
                let parent = self.awake(account, limits, *vm).await?;
                let record = parent.handle.record();
                if *keeps_metadata {
                    order.attributes.metadata = record.metadata;
                }
                let (facts, capture) = (&parent.handle.facts, TemplateId::generate());
                let template = Arc::new(BootTemplate::fork(facts, record.egress, capture));
                awake_parent = Some(parent);
                template
            }
        };
        if let Some(egress) = template.egress.as_ref().filter(|_| order.keeps_egress) {
            order.attributes.egress.clone_from(egress);
        }
        if let Some(name) = &order.attributes.name {
            self.registry().require_free(*account, name)?;
        }
        let mut disk = self.reserve_layers(*account, limits, &template, order.count).await?;
        let reservation = self.reserve(*account, limits, &template, order.count).await?;
        self.0.api.set_url_variable(&mut order);
        let (swarm, account) = (self.clone(), *account);
        // In a task of its own, so that a cancelled request does not leave a partial boot behind.
        tokio::spawn(async move {
            let _awake_parent = awake_parent;
            let booted = match template.source {
                BootState::Fork { parent, capture } => {
                    swarm.boot_copies(account, &order, &template, parent, capture, reservation).await?
                }
                BootState::Disk { booted } => {
                    swarm.boot_from_disk(account, &order, &template, booted, reservation).await?
                }
                BootState::Baked | BootState::Snapshot => {
                    swarm.0.booter.boot_all(account, &order, &template, reservation).await?
                }
            };
            let booted = swarm.settle_layers(disk.as_mut(), booted).await?;
            swarm.record(booted, &order).await
        })
        .await?
    }

    /// Resolves a caller's reference to a VM. Further calls use its id.
    ///
    /// # Errors
    /// Unknown VM, or an ambiguous prefix of an id.
    pub async fn vm(&self, account: &AccountId, vm: VmRef) -> Result<Vm, Error> {
        Ok(self.0.usage.add_to(self.registry().find(*account, vm)?.record()))
    }

    /// Adds to a record from the store why the VM cannot continue, if it is on disk and its memory cannot be used.
    pub fn add_snapshot_state(&self, account: &AccountId, record: Vm) -> Vm {
        match self.registry().by_id(*account, record.id) {
            Ok(handle) => handle.add_snapshot_state(record),
            Err(_) => record,
        }
    }

    /// Changes name, metadata or expiry of a VM, and returns its record.
    ///
    /// # Errors
    /// Unknown VM, or the store refused.
    pub async fn change(
        &self,
        account: &AccountId,
        vm: VmId,
        change: VmChange,
        request_id: &str,
    ) -> Result<Vm, Error> {
        self.registry().by_id(*account, vm)?.change(change, request_id).await
    }

    /// Allows the guest of a VM to reach the API, until the VM ends. A VM on disk reaches it from its resume on. The VM's API key
    /// must be recorded before.
    ///
    /// # Errors
    /// Unknown VM, or the keeper refused.
    pub async fn admit_to_api(&self, account: &AccountId, vm: VmId) -> Result<(), Error> {
        let handle = self.registry().by_id(*account, vm)?;
        match self.0.api.admit(vm).await {
            // This is read after the refusal, because the VMM may end meanwhile. The resume finds the key and admits the VM.
            Err(_) if handle.is_on_disk() => Ok(()),
            outcome => outcome,
        }
    }

    /// The serial log.
    ///
    /// # Errors
    /// Unknown VM.
    pub async fn console(&self, account: &AccountId, vm: VmId) -> Result<Console, Error> {
        Ok(self.registry().by_id(*account, vm)?.console.read())
    }

    /// What a VM may connect to outside, and what it tried.
    ///
    /// # Errors
    /// Unknown VM, or the keeper has no answer.
    pub async fn egress(&self, account: &AccountId, vm: VmId) -> Result<EgressReport, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        handle.require_vmm()?;
        let mut report = self.0.surroundings.keeper.egress_report(vm).await?;
        handle.relay_log.add_to(&mut report);
        Ok(report)
    }

    /// The egress policy of a VM that is applied: `none` on a server whose operator has switched egress off.
    ///
    /// # Errors
    /// Those of [`Self::egress`].
    pub async fn egress_policy(&self, account: &AccountId, vm: VmId) -> Result<EgressPolicy, Error> {
        Ok(self.egress(account, vm).await?.policy)
    }

    /// Adds what git on the server tried for a VM to the report of the VM, until this server ends.
    ///
    /// # Errors
    /// Unknown VM.
    pub fn record_git_relay(&self, account: &AccountId, vm: VmId, tried: EgressTry) -> Result<(), Error> {
        self.registry().by_id(*account, vm)?.relay_log.add(tried);
        Ok(())
    }

    /// Whether VMs can be booted. `Err`: the reason why not.
    pub fn health(&self) -> Result<(), String> {
        if self.0.surroundings.keeper.is_closed() { Err("the keeper is gone".to_owned()) } else { Ok(()) }
    }

    fn registry(&self) -> &Registry {
        &self.0.surroundings.registry
    }
}
