//! A test fixture: a swarm with a fake keeper, whose VMMs are sleeping processes and whose guests are tasks of this
//! process.

use std::{
    collections::BTreeMap,
    future::{Future, pending},
    io::Write,
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    process::{Child, Command},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use skep_api::{
    AccountId, ErrorCode, Failure, TemplateId, VmId,
    egress::EgressPolicy,
    exec::{ExecOutcome, RunCommand},
    keys::Limits,
    swarm::{BootAnswer, EngineReport, Isolation, Vm},
};
use skep_channel::{
    Content, HandOut, HandOutReport, Identity, IdentityReport, TimeAndSeed,
    guest::{Events, Handler, serve},
};
use skep_engine::{DiskTraffic, Driver, Machine, VmmEnd};
use skep_harness::eventually;
use skep_keeper_protocol::{
    Answer, Answerer, HeldVm, KeeperEnd, Launched, Load, MachineMemory, OutOfMemory, Request, ServerEnd,
    SwarmAvailability, Welcome, pair,
};
use skep_swarm::{BootFrom, BootSpec, EndReasonReceiver, Error, ExecStream, Swarm, SwarmParts};
use tokio::{io::AsyncReadExt, net::UnixStream, task::JoinHandle};

use crate::{fake_store::FakeStore, other_release::play};

/// The length of an id such as `vm_01jv0000000000000000000000`.
const VM_ID_BYTES: usize = 29;
/// Memory of the machine, in MiB.
const TOTAL_MB: u64 = 10_000;
pub(crate) const FREE: Limits = Limits::NONE;

/// The state of the fake keeper, and how it fails.
#[derive(Default)]
pub(crate) struct FakeKeeper {
    pub(crate) launched: usize,
    /// The templates of all launches.
    pub(crate) templates_launched: Vec<TemplateId>,
    /// The templates that were removed.
    pub(crate) removed: Vec<TemplateId>,
    pub(crate) launches_until_refusal: Option<usize>,
    pub(crate) hands_over_too_little: bool,
    /// So many of the next guests close their channel.
    pub(crate) guests_hang_up: usize,
    pub(crate) refuses_ends: bool,
    /// Reports ends as caused by a lack of memory.
    pub(crate) out_of_memory: Option<OutOfMemory>,
    /// Available memory of the machine, in MiB. `None`: plenty.
    pub(crate) available_mb: Option<u64>,
    /// How much of that memory the end of a VM frees, in MiB.
    pub(crate) freed_by_end_mb: u64,
    /// The VMs that the server ended.
    pub(crate) ended: usize,
    pub(crate) goes_away: bool,
    pub(crate) refuses_commits: bool,
    pub(crate) commits: usize,
    /// Guests of VMs that are attached again have agents of another release, which answer this to `GET /protocol`.
    pub(crate) answer_of_other_release: Option<Vec<u8>>,
    /// How often processors were started after a pause.
    pub(crate) resumes: usize,
    /// Monitors refuse to stop processors.
    pub(crate) refuses_stops: bool,
    /// Monitors refuse to start processors.
    pub(crate) refuses_starts: bool,
    /// How often guests were sent the time after a pause.
    pub(crate) clocks_set: usize,
    /// Agents are of a release that cannot set the clock.
    pub(crate) agents_lack_clock: bool,
    /// Guests run commands, so that they can be parked.
    pub(crate) runs_commands: bool,
    /// The commands that guests ran.
    pub(crate) commands: Vec<String>,
    /// The egress policies that were applied, in their order.
    pub(crate) policies: Vec<EgressPolicy>,
    pub(crate) refuses_policies: bool,
    vmms: BTreeMap<VmId, Vmm>,
}

impl FakeKeeper {
    /// The number of VMMs, of the pool too.
    pub(crate) fn running(&self) -> usize {
        self.vmms.len()
    }

    pub(crate) fn runs(&self, vm: VmId) -> bool {
        self.vmms[&vm].runs
    }

    pub(crate) fn kill_process(&mut self, vm: VmId) {
        self.vmms.get_mut(&vm).unwrap().process.kill().unwrap();
    }

    pub(crate) fn set_running(&mut self, vm: VmId, runs: bool) {
        self.vmms.get_mut(&vm).unwrap().runs = runs;
    }

    pub(crate) fn forget(&mut self, vm: VmId) {
        self.vmms.remove(&vm);
    }

    /// The VMs that no caller has.
    pub(crate) fn uncommitted(&self) -> usize {
        self.vmms.values().filter(|vmm| !vmm.committed).count()
    }
}

struct Vmm {
    launched: Launched,
    template: TemplateId,
    committed: bool,
    process: Child,
    /// Whether its processors run.
    runs: bool,
    guest: Option<JoinHandle<()>>,
    _streams: [StdStream; 2],
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(guest) = &self.guest {
            guest.abort();
        }
    }
}

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
        let welcome = Welcome { settings: serde_json::Value::Null, admin_key: None, swarm, succeeds: false };
        end.welcome(&welcome, &[]).await.unwrap();
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

#[expect(clippy::too_many_lines, reason = "one arm per request")]
async fn run_keeper(mut end: KeeperEnd, keeper: Arc<Mutex<FakeKeeper>>) {
    while let Ok(Some((request, answerer))) = end.receive().await {
        let refusal = Answer::Refused(Failure::new(ErrorCode::Internal, "/run/skep: refused"));
        match request {
            Request::Launch { .. } if keeper.lock().unwrap().goes_away => return,
            Request::Launch { vm, template, .. } => launch(vm, template, answerer, &keeper).await,
            Request::End { .. } if keeper.lock().unwrap().refuses_ends => {
                answerer.answer(refusal, &[]).await.unwrap();
            }
            Request::End { vm } => {
                let (held, out_of_memory) = {
                    let mut keeper = keeper.lock().unwrap();
                    let held = keeper.vmms.remove(&vm);
                    let freed_mb = keeper.freed_by_end_mb;
                    if held.is_some() {
                        keeper.ended += 1;
                        keeper.available_mb.iter_mut().for_each(|available_mb| *available_mb += freed_mb);
                    }
                    (held, keeper.out_of_memory)
                };
                let answer = match held {
                    Some(_) => Answer::Ended { out_of_memory },
                    None => Answer::Refused(Failure::new(ErrorCode::UnknownVm, "none")),
                };
                answerer.answer(answer, &[]).await.unwrap();
            }
            Request::Memory => {
                let available_mb = keeper.lock().unwrap().available_mb.unwrap_or(TOTAL_MB);
                let memory = MachineMemory {
                    available_bytes: available_mb << 20,
                    total_bytes: TOTAL_MB << 20,
                    templates_bytes: 0,
                    under_pressure: false,
                };
                answerer.answer(Answer::Memory(memory), &[]).await.unwrap();
            }
            Request::List { .. } => {
                let held = |vmm: &Vmm| HeldVm {
                    launched: vmm.launched.clone(),
                    template: vmm.template,
                    committed: vmm.committed,
                    load: Load { held_bytes: 60 << 20, cpu_us: 7000, disk_bytes: 5 << 20 },
                };
                let vms = keeper.lock().unwrap().vmms.values().map(held).collect();
                answerer.answer(Answer::List { vms }, &[]).await.unwrap();
            }
            Request::Commit { .. } if keeper.lock().unwrap().refuses_commits => {
                answerer.answer(refusal, &[]).await.unwrap();
            }
            Request::Commit { vm } => {
                {
                    let mut keeper = keeper.lock().unwrap();
                    keeper.commits += 1;
                    keeper.vmms.get_mut(&vm).unwrap().committed = true;
                }
                answerer.answer(Answer::Committed, &[]).await.unwrap();
            }
            Request::SetEgress { .. } if keeper.lock().unwrap().refuses_policies => {
                answerer.answer(refusal, &[]).await.unwrap();
            }
            Request::SetEgress { policy, .. } => {
                keeper.lock().unwrap().policies.push(policy);
                answerer.answer(Answer::EgressSet, &[]).await.unwrap();
            }
            Request::Attach { vm } => attach(vm, answerer, &keeper).await,
            Request::RemoveTemplate { template } => {
                keeper.lock().unwrap().removed.push(template);
                answerer.answer(Answer::TemplateRemoved, &[]).await.unwrap();
            }
            Request::BuildTemplate { .. }
            | Request::BootDisk { .. }
            | Request::TemplateStatus { .. }
            | Request::ListTemplates { .. }
            | Request::Usage { .. }
            | Request::AdmitToApi { .. }
            | Request::EgressReport { .. }
            | Request::EgressTotals
            | Request::Tls { .. }
            | Request::Helper { .. }
            | Request::Restart
            | Request::Ready
            | Request::Unable { .. }
            | Request::PrepareCapture { .. }
            | Request::Capture { .. }
            | Request::StoreCapture { .. }
            | Request::DropCapture { .. }
            | Request::ReserveAddress { .. }
            | Request::EndReservation { .. } => answerer.answer(refusal, &[]).await.unwrap(),
        }
    }
}

async fn attach(vm: VmId, answerer: Answerer, keeper: &Arc<Mutex<FakeKeeper>>) {
    let [(monitor, m), (agent, guest), (console, c)] = [(); 3].map(|()| StdStream::pair().unwrap());
    introduce(&m, vm);
    let (launched, pidfd) = {
        let this = Arc::clone(keeper);
        let mut keeper = keeper.lock().unwrap();
        let hang_up = keeper.guests_hang_up > 0;
        let other_release = keeper.answer_of_other_release.clone();
        let vmm = keeper.vmms.get_mut(&vm).unwrap();
        // A VMM serves one stream at a time.
        vmm.guest.take().into_iter().for_each(|guest| guest.abort());
        vmm.guest = (!hang_up).then(|| match other_release {
            Some(answer) => tokio::spawn(async move { play(tokio_stream(guest), &answer).await.unwrap() }),
            None => spawn_guest(vm, guest, this),
        });
        vmm._streams = [m, c];
        (vmm.launched.clone(), pidfd_open(Pid::from_child(&vmm.process), PidfdFlags::NONBLOCK).unwrap())
    };
    let descriptors: Vec<OwnedFd> = vec![pidfd, monitor.into(), agent.into(), console.into()];
    answerer.answer(Answer::Attached(launched), &descriptors).await.unwrap();
}

fn spawn_guest(vm: VmId, stream: StdStream, keeper: Arc<Mutex<FakeKeeper>>) -> JoinHandle<()> {
    let stream = tokio_stream(stream);
    tokio::spawn(async move {
        // The agent of a paused VM does not answer.
        while !keeper.lock().unwrap().vmms.get(&vm).is_some_and(|vmm| vmm.runs) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        serve(stream, FakeGuest(keeper)).await.unwrap();
    })
}

/// Tells the driver which VM a monitor belongs to.
fn introduce(mut monitor: &StdStream, vm: VmId) {
    monitor.write_all(vm.to_string().as_bytes()).unwrap();
}

fn tokio_stream(stream: StdStream) -> UnixStream {
    stream.set_nonblocking(true).unwrap();
    UnixStream::from_std(stream).unwrap()
}

async fn launch(vm: VmId, template: TemplateId, answerer: Answerer, keeper: &Arc<Mutex<FakeKeeper>>) {
    let (refused, hang_up, too_little) = {
        let mut keeper = keeper.lock().unwrap();
        keeper.launched += 1;
        keeper.templates_launched.push(template);
        let refused = keeper.launches_until_refusal.is_some_and(|until| keeper.launched > until);
        let hang_up = keeper.guests_hang_up > 0;
        keeper.guests_hang_up = keeper.guests_hang_up.saturating_sub(1);
        (refused, hang_up, keeper.hands_over_too_little)
    };
    if refused {
        let refusal = Answer::Refused(Failure::new(ErrorCode::Internal, "/run/skep: no"));
        return answerer.answer(refusal, &[]).await.unwrap();
    }
    let [(monitor, m), (agent, guest), (console, c)] = [(); 3].map(|()| StdStream::pair().unwrap());
    introduce(&m, vm);
    let process = Command::new("sleep").arg("600").spawn().unwrap();
    let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::NONBLOCK).unwrap();
    let launched = Launched {
        vm,
        pid: process.id(),
        ip: Ipv4Addr::LOCALHOST,
        prefix_len: 16,
        gateway: Ipv4Addr::LOCALHOST,
        mac: [2, 0, 0, 0, 0, 1],
        template_key: "key".to_owned(),
        vcpus: 1,
        memory_mb: 128,
    };
    let guest = (!hang_up).then(|| spawn_guest(vm, guest, Arc::clone(keeper)));
    let vmm = Vmm {
        launched: launched.clone(),
        template,
        committed: false,
        process,
        runs: false,
        guest,
        _streams: [m, c],
    };
    keeper.lock().unwrap().vmms.insert(vm, vmm);
    let state = std::fs::File::open("/dev/null").unwrap();
    let mut descriptors: Vec<OwnedFd> =
        vec![pidfd, monitor.into(), agent.into(), console.into(), state.into()];
    if too_little {
        descriptors.pop();
    }
    // Fails only if the server is gone.
    let _ = answerer.answer(Answer::Launched(launched), &descriptors).await;
}

/// A fake guest that takes any identity and runs no commands.
#[derive(Clone)]
struct FakeGuest(Arc<Mutex<FakeKeeper>>);

impl Handler for FakeGuest {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn set_identity(&self, identity: Identity) -> Result<IdentityReport, Failure> {
        Ok(IdentityReport {
            vm: identity.vm,
            hostname: identity.hostname,
            mac: identity.mac,
            ip: identity.ip,
            prefix_len: identity.prefix_len,
            machine_id: identity.machine_id,
            boot_id: identity.boot_id,
            reseeded: true,
            clock_step_ms: 0.0,
        })
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        Ok(HandOutReport { reseeded: true, clock_step_ms: 0.0 })
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        let mut keeper = self.0.lock().unwrap();
        if keeper.agents_lack_clock {
            return Err(Failure::new(ErrorCode::UnknownRoute, "the agent has no route POST /clock"));
        }
        keeper.clocks_set += 1;
        Ok(HandOutReport { reseeded: true, clock_step_ms: 0.0 })
    }

    async fn wait_until_prepared(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn run(&self, _: &str, _: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let runs = {
            let keeper = self.0.lock().unwrap();
            keeper.agents_lack_clock || keeper.runs_commands
        };
        if !runs {
            return pending().await;
        }
        let command: RunCommand = serde_json::from_slice(&request).unwrap();
        self.0.lock().unwrap().commands.push(command.command);
        Ok(ANSWER_OF_COMMAND.into())
    }

    async fn run_streamed(
        &self,
        name: &str,
        _: bytes::Bytes,
        _: Content,
    ) -> Result<(Vec<u8>, Content), Failure> {
        Err(Failure::new(ErrorCode::UnknownRoute, name))
    }

    fn start(&self, _: &str, _: RunCommand) -> Result<Events, Failure> {
        Ok(Box::pin(futures_util::stream::pending()))
    }

    fn attach(&self, _: &str, _: u64, _: u64) -> Result<Events, Failure> {
        Ok(Box::pin(futures_util::stream::pending()))
    }

    fn cancel(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }
}

const ANSWER_OF_COMMAND: &str = r#"{"exit_code":0,"signal":null,"stdout":"","stderr":"","duration_ms":1,"timed_out":false,"truncated":false}"#;

/// A fake driver that restores immediately and reports no shutdown reason.
struct FakeDriver {
    keeper: Arc<Mutex<FakeKeeper>>,
}

struct FakeMachine {
    vm: VmId,
    keeper: Arc<Mutex<FakeKeeper>>,
    _monitor: UnixStream,
}

impl FakeDriver {
    async fn machine(&self, mut monitor: UnixStream) -> FakeMachine {
        let mut vm = [0; VM_ID_BYTES];
        monitor.read_exact(&mut vm).await.unwrap();
        let vm = std::str::from_utf8(&vm).unwrap().parse().unwrap();
        FakeMachine { vm, keeper: Arc::clone(&self.keeper), _monitor: monitor }
    }
}

impl FakeMachine {
    fn set_running(&self, command: &'static str, runs: bool) -> Result<(), skep_engine::Error> {
        let mut keeper = self.keeper.lock().unwrap();
        if if runs { keeper.refuses_starts } else { keeper.refuses_stops } {
            return Err(skep_engine::Error::Refused { command, reason: "a test".to_owned() });
        }
        let closed = || skep_engine::Error::MonitorClosed("a test".to_owned());
        keeper.vmms.get_mut(&self.vm).ok_or_else(closed)?.runs = runs;
        Ok(())
    }
}

#[async_trait]
impl Driver for FakeDriver {
    async fn restore(&self, monitor: UnixStream, _: OwnedFd) -> Result<Box<dyn Machine>, skep_engine::Error> {
        let machine = self.machine(monitor).await;
        machine.set_running("cont", true)?;
        Ok(Box::new(machine))
    }

    async fn attach(&self, monitor: UnixStream) -> Result<Box<dyn Machine>, skep_engine::Error> {
        Ok(Box::new(self.machine(monitor).await))
    }
}

#[async_trait]
impl Machine for FakeMachine {
    async fn pause(&self) -> Result<(), skep_engine::Error> {
        self.set_running("stop", false)
    }

    async fn resume(&self) -> Result<(), skep_engine::Error> {
        self.keeper.lock().unwrap().resumes += 1;
        self.set_running("cont", true)
    }

    async fn is_running(&self) -> Result<bool, skep_engine::Error> {
        Ok(self.keeper.lock().unwrap().runs(self.vm))
    }

    async fn disk_traffic(&self) -> Result<DiskTraffic, skep_engine::Error> {
        Ok(DiskTraffic::default())
    }

    async fn save_devices(&self, _: OwnedFd) -> Result<(), skep_engine::Error> {
        unreachable!("no test copies a VM")
    }

    async fn save(&self, _: OwnedFd) -> Result<(), skep_engine::Error> {
        Ok(())
    }

    async fn ended(&self) -> Option<VmmEnd> {
        pending().await
    }
}
