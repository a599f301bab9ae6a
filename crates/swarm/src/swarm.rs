//! The interface of the swarm for the server.

use std::{net::SocketAddr, sync::Arc, thread::available_parallelism, time::Duration};

use futures_util::future::join_all;
use jiff::Timestamp;
use skep_api::{
    AccountId, ErrorCode, Failure, Operation, VmId, VmRef,
    exec::{ANSWER_GRACE, MAX_TIMEOUT_MS, RunCommand},
    keys::Limits,
    swarm::{BASE_TEMPLATE, BootAnswer, Console, EndReason, EngineReport, SwarmStatus, Vm, VmMetrics},
};
use skep_channel::{Content, ExecStream};
use skep_engine::Driver;
use skep_keeper_protocol::ServerEnd;
use skep_store::{RecordBoots, TicketStore, VmChange, VmStore, VmWithoutAttempt};
use tokio::time::timeout;

use crate::{
    BootSpec, EndReasonReceiver, Error, Observer, SwarmMetrics, adopt,
    api_access::ApiAccess,
    boot::Booter,
    boot_command,
    budget::Budget,
    metrics,
    pool::Pool,
    refill,
    registry::Registry,
    restore::Restorer,
    round_ms, ticket_file,
    usage::{self, UsageSamples},
    vm::{self, BootedVm, VmContext, VmHandle},
};

/// How long a command may run while a caller waits for it, including the time for its answer.
const MAX_EXEC_DURATION: Duration = Duration::from_millis(MAX_TIMEOUT_MS).saturating_add(ANSWER_GRACE);
/// How long a command may continue after its ticket is finished.
const COMMAND_EXIT_GRACE: Duration = Duration::from_secs(5);
/// Default pool size per processor: enough for a burst of boots until the pool is refilled.
const POOL_SIZE_PER_CORE: u32 = 4;
/// Upper limit of the default pool size.
const MAX_DEFAULT_POOL_SIZE: u32 = 32;

/// Dependencies and limits of a swarm.
pub struct SwarmParts {
    pub keeper: ServerEnd,
    pub driver: Arc<dyn Driver>,
    pub store: Arc<dyn VmStore>,
    /// Read for the file in a VM that is booted for a ticket.
    pub tickets: Arc<dyn TicketStore>,
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
}

/// All VMs of this server. Cheap to clone.
#[derive(Clone)]
pub struct Swarm(Arc<Inner>);

struct Inner {
    booter: Booter,
    surroundings: VmContext,
    tickets: Arc<dyn TicketStore>,
    budget: Arc<Budget>,
    engine: EngineReport,
    api: ApiAccess,
    usage: UsageSamples,
}

impl Swarm {
    /// Starts the swarm and adopts the VMs of an earlier server that still run. The others are recorded as lost.
    ///
    /// # Errors
    /// The keeper or the store is not available.
    pub async fn start(parts: SwarmParts) -> Result<Self, Error> {
        let surroundings = VmContext {
            keeper: parts.keeper.clone(),
            store: parts.store,
            registry: Arc::new(Registry::default()),
            observer: parts.observer,
        };
        let api = ApiAccess::new(parts.keeper.clone(), parts.api);
        let usage = UsageSamples::default();
        tokio::spawn(usage.clone().run(parts.keeper.clone()));
        let budget =
            Arc::new(Budget::new(parts.max_vms, parts.memory_mb, parts.promises_mb, parts.overhead_mb));
        let restorer = Arc::new(Restorer { keeper: parts.keeper, driver: parts.driver });
        adopt::adopt_vms(&restorer, &surroundings, &budget).await?;
        let size = parts.pool_size.unwrap_or_else(|| default_pool_size(parts.max_vms));
        let pool = Pool::new(restorer, budget.clone(), size, parts.guest_memory_mb);
        tokio::spawn(refill::run(pool.clone()));
        let (tickets, engine) = (parts.tickets, parts.engine);
        let booter = Booter { pool };
        Ok(Self(Arc::new(Inner { booter, surroundings, tickets, budget, engine, api, usage })))
    }

    /// The account's VMs, and the capacity of the machine.
    pub async fn status(&self, account: &AccountId) -> Result<SwarmStatus, Error> {
        let vms = self.registry().of(*account);
        let vms: Vec<Vm> = vms.iter().map(|vm| self.0.usage.add_to(vm.record())).collect();
        Ok(SwarmStatus {
            count: u32::try_from(vms.len()).unwrap_or(u32::MAX),
            vms,
            pool: self.0.booter.pool.state(),
            capacity: self.0.budget.capacity(),
            engine: Some(self.0.engine.clone()),
        })
    }

    /// Boots all VMs of a request, or none.
    ///
    /// # Errors
    /// Unknown template, quota, capacity, or a VM that did not start.
    pub async fn boot(
        &self,
        account: &AccountId,
        limits: &Limits,
        mut order: BootSpec,
    ) -> Result<BootAnswer, Error> {
        if order.template != BASE_TEMPLATE {
            return Err(Failure::unknown_template(&order.template).into());
        }
        if let Some(name) = &order.attributes.name {
            self.registry().require_free(*account, name)?;
        }
        let reservation =
            self.0.budget.reserve(*account, limits, order.count, self.0.booter.pool.guest_mb)?;
        self.0.api.set_url_variable(&mut order);
        let (swarm, account) = (self.clone(), *account);
        // In a task of its own, so that a cancelled request does not leave a partial boot behind.
        tokio::spawn(async move {
            let booted = swarm.0.booter.boot_all(account, &order, reservation).await?;
            swarm.record(booted, &order).await
        })
        .await?
    }

    /// Ends all VMs of the account. Returns how many this call ended.
    pub async fn cleanup(&self, account: &AccountId, request_id: &str) -> Result<u32, Error> {
        let vms = self.registry().of(*account);
        let ends = join_all(vms.iter().map(|handle| handle.end(EndReason::Cleanup, Some(request_id)))).await;
        let mut terminated = 0;
        for end in ends {
            match end {
                Ok(true) => terminated += 1,
                // The VM ended by itself or by another call.
                Ok(false) => {}
                Err(error) if error.code() == ErrorCode::UnknownVm => {}
                Err(error) => return Err(error),
            }
        }
        Ok(terminated)
    }

    /// Resolves a caller's reference to a VM. Further calls use its id.
    ///
    /// # Errors
    /// Unknown VM, or an ambiguous prefix of an id.
    pub async fn vm(&self, account: &AccountId, vm: VmRef) -> Result<Vm, Error> {
        Ok(self.0.usage.add_to(self.registry().find(*account, vm)?.record()))
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

    /// Pauses a VM to memory, and returns its record. A paused VM stays as it is.
    ///
    /// # Errors
    /// Unknown VM, a VM that ended meanwhile, a VMM that does not answer, or the store refused.
    pub async fn pause(&self, account: &AccountId, vm: VmId, request_id: &str) -> Result<Vm, Error> {
        self.registry().by_id(*account, vm)?.pause(request_id).await
    }

    /// Resumes a paused VM, and returns its record. A VM that runs stays as it is.
    ///
    /// # Errors
    /// As [`Swarm::pause`]; a guest that does not answer.
    pub async fn resume(&self, account: &AccountId, vm: VmId, request_id: &str) -> Result<Vm, Error> {
        self.registry().by_id(*account, vm)?.resume(request_id).await
    }

    /// Checks that a VM runs.
    ///
    /// # Errors
    /// Unknown or paused VM.
    pub fn require_running(&self, account: &AccountId, vm: VmId) -> Result<(), Error> {
        self.registry().by_id(*account, vm)?.guest()?;
        Ok(())
    }

    /// Allows the guest of a VM to reach the API, until the VM ends. For VMs that have an API key.
    ///
    /// # Errors
    /// Unknown VM, or the keeper refused.
    pub async fn admit_to_api(&self, account: &AccountId, vm: VmId) -> Result<(), Error> {
        self.registry().by_id(*account, vm)?;
        self.0.api.admit(vm).await
    }

    /// Ends one VM and returns its record.
    ///
    /// # Errors
    /// Unknown VM.
    pub async fn end(&self, account: &AccountId, vm: VmId, request_id: &str) -> Result<Vm, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        handle.end(EndReason::Deleted, Some(request_id)).await?;
        Ok(handle.record())
    }

    /// Ends a VM because its attempt at a ticket has ended, if it still runs. If the ticket is finished, the command of
    /// the boot gets some seconds to exit first, since it may have finished the ticket itself.
    ///
    /// # Errors
    /// The keeper or the store is not available.
    pub async fn end_after_attempt(&self, ended: VmWithoutAttempt) -> Result<(), Error> {
        let VmWithoutAttempt { account, vm, finished } = ended;
        let Ok(handle) = self.registry().by_id(account, vm) else { return Ok(()) };
        if finished {
            let _ = timeout(COMMAND_EXIT_GRACE, handle.command_over()).await;
        }
        match handle.end(EndReason::TicketEnded, None).await {
            Err(error) if error.code() != ErrorCode::UnknownVm => Err(error),
            _ => Ok(()),
        }
    }

    /// Performs an operation in a VM. Dropping the future cancels it in the guest.
    ///
    /// # Errors
    /// Unknown or paused VM, a VM that ended meanwhile, a guest that does not answer, or a refusal of the guest.
    pub async fn call<O: Operation>(
        &self,
        account: &AccountId,
        vm: VmId,
        operation: &O,
    ) -> Result<O::Answer, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        let guest = handle.guest()?;
        match guest.call(operation).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(handle.ending.explain(error).await),
        }
    }

    /// Performs an operation whose request or answer is followed by a byte stream. Dropping the future or the stream
    /// cancels it in the guest.
    ///
    /// # Errors
    /// As [`Swarm::call`].
    pub async fn call_streamed<O: Operation>(
        &self,
        account: &AccountId,
        vm: VmId,
        operation: &O,
        content: Option<Content>,
    ) -> Result<(O::Answer, Content), Error> {
        let handle = self.registry().by_id(*account, vm)?;
        let guest = handle.guest()?;
        match guest.call_streamed(operation, content).await {
            Ok((answer, content)) => Ok((answer, handle.ending.explain_content(guest, content))),
            Err(error) => Err(handle.ending.explain(error).await),
        }
    }

    /// Runs a command in a VM and streams its output. Dropping the stream ends the command. If the events break off,
    /// the [`EndReasonReceiver`] has the reason.
    ///
    /// # Errors
    /// As [`Swarm::call`].
    pub async fn exec_stream(
        &self,
        account: &AccountId,
        vm: VmId,
        command: RunCommand,
    ) -> Result<(ExecStream, EndReasonReceiver), Error> {
        let handle = self.registry().by_id(*account, vm)?;
        let guest = handle.guest()?;
        match guest.start(&command).await {
            Ok(events) => Ok((events, handle.ending)),
            Err(error) => Err(handle.ending.explain(error).await),
        }
    }

    /// Attaches to a running command at these output offsets. Dropping the stream ends the command, unless it is the
    /// command of the boot. If the events break off, the [`EndReasonReceiver`] has the reason.
    ///
    /// # Errors
    /// As [`Swarm::call`]; unknown command.
    pub async fn exec_attach(
        &self,
        account: &AccountId,
        vm: VmId,
        exec_id: &str,
        stdout_offset: u64,
        stderr_offset: u64,
    ) -> Result<(ExecStream, EndReasonReceiver), Error> {
        let handle = self.registry().by_id(*account, vm)?;
        let of_boot = handle.facts.exec_id.as_deref() == Some(exec_id);
        let guest = handle.guest()?;
        let attached = if of_boot {
            let limit = boot_command::MAX_COMMAND_DURATION;
            guest.attach_detached(exec_id, stdout_offset, stderr_offset, limit).await
        } else {
            guest.attach(exec_id, stdout_offset, stderr_offset, MAX_EXEC_DURATION).await
        };
        match attached {
            Ok(events) => Ok((events, handle.ending)),
            Err(error) => Err(handle.ending.explain(error).await),
        }
    }

    /// The serial log.
    ///
    /// # Errors
    /// Unknown VM.
    pub async fn console(&self, account: &AccountId, vm: VmId) -> Result<Console, Error> {
        Ok(self.registry().by_id(*account, vm)?.console.read())
    }

    /// What a VM uses now.
    ///
    /// # Errors
    /// Unknown VM, or the keeper is gone.
    pub async fn vm_metrics(&self, account: &AccountId, vm: VmId) -> Result<VmMetrics, Error> {
        let handle = self.registry().by_id(*account, vm)?;
        usage::read(&self.0.surroundings.keeper, &handle).await
    }

    /// Whether VMs can be booted. `Err`: the reason why not.
    pub fn health(&self) -> Result<(), String> {
        if self.0.surroundings.keeper.is_closed() { Err("the keeper is gone".to_owned()) } else { Ok(()) }
    }

    /// Metrics of the whole swarm, over all accounts.
    pub async fn metrics(&self) -> SwarmMetrics {
        SwarmMetrics {
            vms: self.registry().states().into_iter().map(|state| (state, 1)).collect(),
            pool: self.0.booter.pool.state(),
            capacity: self.0.budget.capacity(),
            held_bytes: self.0.usage.held_bytes(),
            vmms: metrics::count_vmms(&self.0.surroundings.keeper).await,
        }
    }

    /// Starts the work of booted VMs. If that fails, ends all of them.
    async fn start_work_or_end_vms(&self, vms: &[VmHandle], order: &BootSpec) -> Result<(), Error> {
        let Err(error) = self.start_work(vms, order).await else { return Ok(()) };
        let request_id = order.request_id.as_str();
        // The boot request itself ends them, so it does not count as an attempt at the ticket.
        for end in join_all(vms.iter().map(|vm| vm.end(EndReason::Deleted, Some(request_id)))).await {
            if let Err(error) = end {
                tracing::warn!(%error, "a VM whose command did not start is not ended yet: {error}");
            }
        }
        Err(error)
    }

    /// Writes the ticket file into the VM that works on it, and starts the command of the boot in all VMs.
    async fn start_work(&self, vms: &[VmHandle], order: &BootSpec) -> Result<(), Error> {
        let store = &self.0.surroundings.store;
        if let (Some(work), [vm]) = (&order.work, vms) {
            ticket_file::write(vm, &*self.0.tickets, work).await?;
        }
        let Some(command) = &order.command else { return Ok(()) };
        let starts = join_all(vms.iter().map(|vm| boot_command::start(vm, store, command))).await;
        starts.into_iter().collect()
    }

    fn registry(&self) -> &Registry {
        &self.0.surroundings.registry
    }

    async fn record(&self, booted: Vec<BootedVm>, order: &BootSpec) -> Result<BootAnswer, Error> {
        let mut vms: Vec<Vm> = booted.iter().map(BootedVm::record).collect();
        vms.sort_by_key(|vm| vm.id);
        let mut answer = BootAnswer { vms, elapsed_ms: round_ms(order.arrived.elapsed()) };
        let command = RecordBoots {
            vms: booted.iter().map(|vm| vm.facts.clone()).collect(),
            at: Timestamp::now(),
            request_id: Some(order.request_id.clone()),
            attempt: order.work.clone(),
            answer: order.once.clone().map(|once| (once, answer.clone())),
        };
        // Before the record, which makes the VM's API key valid: no guest command runs yet, and after a refusal of the
        // keeper nothing is recorded.
        let recorded = match self.0.api.admit_all(&booted, order).await {
            Ok(()) => self.0.surroundings.store.record_boots(command).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            self.0.booter.end_unrecorded(booted).await;
            return Err(error);
        }
        let mut handles = Vec::with_capacity(booted.len());
        for vm in booted {
            self.0.surroundings.observer.booted(&vm.facts.boot);
            handles.push(vm::spawn_vm_task(vm.recorded(), self.0.surroundings.clone()));
        }
        self.start_work_or_end_vms(&handles, order).await?;
        // With an idempotency key the answer must equal the stored one.
        if order.once.is_none() {
            answer.elapsed_ms = round_ms(order.arrived.elapsed());
        }
        Ok(answer)
    }
}

/// At most a quarter of the VMs that fit the machine, because idle VMs take memory from the page cache.
fn default_pool_size(max_vms: u32) -> u32 {
    let cores = available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    (cores * POOL_SIZE_PER_CORE).min(max_vms / 4).min(MAX_DEFAULT_POOL_SIZE)
}
