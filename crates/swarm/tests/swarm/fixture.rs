//! A test fixture: a swarm with a fake keeper, whose VMMs are sleeping processes and whose guests are tasks of this
//! process.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Instant,
};

use skep_api::{
    AccountId, VmId,
    exec::{ExecOutcome, RunCommand},
    keys::Limits,
    swarm::{BootAnswer, EngineReport, Isolation, Vm},
};
use skep_harness::eventually;
use skep_keeper_protocol::{KeeperEnd, ServerEnd, ServerSetup, SwarmAvailability, pair};
use skep_swarm::{BootFrom, BootSpec, EndReasonReceiver, Error, ExecStream, Swarm, SwarmParts};
use tokio::task::JoinHandle;

use crate::{
    fake_driver::FakeDriver,
    fake_keeper::{FakeKeeper, run_keeper},
    fake_store::FakeStore,
};

pub(crate) const FREE: Limits = Limits::NONE;

pub(crate) struct Fixture {
    pub(crate) swarm: Swarm,
    pub(crate) account: AccountId,
    pub(crate) store: Arc<FakeStore>,
    keeper: Arc<Mutex<FakeKeeper>>,
    keeping: JoinHandle<()>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with_pool(0).await
    }

    pub(crate) async fn with_pool(size: u32) -> Self {
        Self::start(Arc::default(), Arc::default(), AccountId::generate(), size).await
    }

    /// A swarm with so many parked VMs.
    pub(crate) async fn with_parked(size: u32) -> Self {
        let keeper = FakeKeeper { runs_commands: true, ..FakeKeeper::default() };
        let keeper = Arc::new(Mutex::new(keeper));
        let fixture = Self::start(keeper, Arc::default(), AccountId::generate(), size).await;
        eventually("the pool", async || fixture.parked("base").await == size).await;
        fixture
    }

    /// The parked VMs of a template.
    pub(crate) async fn parked(&self, template: &str) -> u32 {
        let pool = self.swarm.status(&self.account).await.unwrap().pool;
        pool.get(template).map_or(0, |pool| pool.ready)
    }

    /// Starts another swarm, as after a crash of the server.
    pub(crate) async fn restart(self) -> Self {
        let Self { swarm, account, store, keeper, keeping } = self;
        // The tasks of the old swarm continue, unlike those of a crashed server, but they are disconnected.
        drop(swarm);
        keeping.abort();
        keeper.lock().unwrap().vmms.values_mut().for_each(|vmm| {
            vmm.guest.take().into_iter().for_each(|guest| guest.abort());
        });
        Self::start(keeper, store, account, 0).await
    }

    async fn start(
        keeper: Arc<Mutex<FakeKeeper>>,
        store: Arc<FakeStore>,
        account: AccountId,
        pool_size: u32,
    ) -> Self {
        let (keeper_socket, server_socket) = pair().unwrap();
        let end = KeeperEnd::new(keeper_socket).unwrap();
        let swarm = SwarmAvailability::Unable { reason: "a test".to_owned() };
        let setup =
            ServerSetup { settings: serde_json::Value::Null, admin_key: None, swarm, succeeds: false };
        end.send_setup(&setup, &[]).await.unwrap();
        let keeping = tokio::spawn(run_keeper(end, keeper.clone()));
        let (server_end, _, _) = ServerEnd::connect(server_socket).await.unwrap();
        let engine = EngineReport {
            name: "none".to_owned(),
            accel: "none".to_owned(),
            isolation: Isolation::Emulated,
            reason: "a test".to_owned(),
        };
        let parts = SwarmParts {
            keeper: server_end,
            driver: Arc::new(FakeDriver { keeper: keeper.clone() }),
            store: store.clone(),
            tickets: store.clone(),
            templates: store.clone(),
            engine,
            max_vms: 100,
            memory_mb: 100_000,
            promises_mb: 100_000,
            guest_memory_mb: 128,
            overhead_mb: 48,
            pool_size: Some(pool_size),
            api: None,
            observer: Arc::new(()),
            workspaces: store.clone(),
        };
        let swarm = Swarm::start(parts).await.unwrap();
        Self { swarm, account, store, keeper, keeping }
    }

    pub(crate) fn keeper<T>(&self, look: impl FnOnce(&mut FakeKeeper) -> T) -> T {
        look(&mut self.keeper.lock().unwrap())
    }

    pub(crate) fn boot_spec(&self, count: u32) -> BootSpec {
        BootSpec {
            count,
            attributes: Default::default(),
            source: BootFrom::Template { reference: "base".to_owned(), memory: true },
            keeps_egress: true,
            ttl: None,
            env: BTreeMap::new(),
            arrived: Instant::now(),
            started_at: jiff::Timestamp::now(),
            request_id: "boot".to_owned(),
            work: None,
            command: None,
            once: None,
        }
    }

    pub(crate) fn boot(&self, count: u32) -> impl Future<Output = Result<BootAnswer, Error>> {
        self.boot_with(self.boot_spec(count))
    }

    pub(crate) async fn boot_with(&self, order: BootSpec) -> Result<BootAnswer, Error> {
        self.swarm.boot(&self.account, &FREE, order).await
    }

    pub(crate) async fn call(&self, vm: VmId, command: &RunCommand) -> Result<ExecOutcome, Error> {
        self.swarm.awake(&self.account, &FREE, vm).await?.call(command).await
    }

    pub(crate) async fn exec_stream(
        &self,
        vm: VmId,
        command: RunCommand,
    ) -> Result<(ExecStream, EndReasonReceiver), Error> {
        self.swarm.awake(&self.account, &FREE, vm).await?.exec_stream(command).await
    }

    pub(crate) async fn records(&self) -> Vec<Vm> {
        self.swarm.status(&self.account).await.unwrap().vms
    }

    pub(crate) async fn count(&self) -> u32 {
        self.swarm.status(&self.account).await.unwrap().count
    }

    pub(crate) async fn memory_used(&self) -> u64 {
        self.swarm.status(&self.account).await.unwrap().capacity.memory_used_mb
    }

    /// Kills a VM's process and its guest.
    pub(crate) fn kill(&self, vm: VmId) {
        self.keeper(|keeper| {
            let vmm = keeper.vmms.get_mut(&vm).unwrap();
            vmm.process.kill().unwrap();
            vmm.guest.take().unwrap().abort();
        });
    }

    /// Closes a guest's side of the channel. Its VMM keeps running.
    pub(crate) fn close_guest_channel(&self, vm: VmId) {
        self.keeper(|keeper| keeper.vmms.get_mut(&vm).unwrap().guest.take().unwrap().abort());
    }

    /// Asserts that no VM and no reservation is left.
    pub(crate) async fn assert_nothing_left(&self) {
        assert_eq!(self.keeper(|keeper| keeper.vmms.len()), 0, "VMs with the keeper");
        assert_eq!(self.count().await, 0, "VMs with the swarm");
        assert_eq!(self.memory_used().await, 0, "reserved memory");
    }
}
