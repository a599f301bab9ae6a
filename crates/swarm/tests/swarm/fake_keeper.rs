//! A fake keeper, whose VMMs are sleeping processes and whose guests are tasks of this process.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::Write,
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    process::{Child, Command},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use skep_api::{AccountId, ErrorCode, Failure, TemplateId, VmId, egress::EgressPolicy};
use skep_channel::guest::serve;
use skep_keeper_protocol::{
    Answer, Answerer, HeldVm, KeeperEnd, Launched, Load, MachineMemory, OutOfMemory, Request,
};
use tokio::{net::UnixStream, task::JoinHandle};

use crate::{fake_disk::answer_for_disk, fake_guest::FakeGuest, other_release::play};

/// Memory of the machine, in MiB.
const TOTAL_MB: u64 = 10_000;

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
    /// So many of the next guests that are attached again keep their channel open and answer nothing.
    pub(crate) guests_stay_silent: usize,
    /// How many of the next guests report that they did not reseed their random number generators.
    pub(crate) guests_keep_randomness: usize,
    pub(crate) refuses_ends: bool,
    /// VMs only end when this is false again.
    pub(crate) holds_ends: bool,
    /// The VMs that did not end because of that.
    pub(crate) ends_held: usize,
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
    /// Monitors start processors after a pause only when this is false again.
    pub(crate) holds_resumes: bool,
    /// Monitors refuse to stop processors.
    pub(crate) refuses_stops: bool,
    /// Monitors refuse to start processors.
    pub(crate) refuses_starts: bool,
    /// How often guests were sent the time after a pause.
    pub(crate) clocks_set: usize,
    /// The number of further messages with the time that guests answer late.
    pub(crate) slow_clocks: usize,
    /// Agents are of a release that cannot set the clock.
    pub(crate) agents_lack_clock: bool,
    /// Guests run commands, so that they can be parked.
    pub(crate) runs_commands: bool,
    /// Guests refuse to start commands.
    pub(crate) refuses_commands: bool,
    /// Started commands print without end.
    pub(crate) commands_print: bool,
    /// When the output of one of them was first asked for.
    pub(crate) printing_since: Option<Instant>,
    /// What they printed, in bytes.
    pub(crate) bytes_printed: usize,
    /// The commands that guests ran.
    pub(crate) commands: Vec<String>,
    /// The guests that were asked to freeze their programs.
    pub(crate) freezes: usize,
    /// Guests never finish a freeze.
    pub(crate) never_freezes: bool,
    /// The guests that were asked to continue them.
    pub(crate) thaws: usize,
    /// The egress policies that were applied, in their order.
    pub(crate) policies: Vec<EgressPolicy>,
    /// The accounts of their VMs.
    pub(crate) accounts: BTreeSet<Option<AccountId>>,
    pub(crate) refuses_policies: bool,
    /// The process ids that the next VMMs report. Later ones report those of their processes.
    pub(crate) pids: VecDeque<u32>,
    /// Captures are only stored when this is false again.
    pub(crate) holds_captures: bool,
    /// The captures that are not stored because of that.
    pub(crate) captures_held: usize,
    /// So many of the next reservations of addresses are refused.
    pub(crate) reservations_to_refuse: usize,
    /// The reservations that were not refused.
    pub(crate) reservations: usize,
    /// Captures that are stored are outdated, for this reason.
    pub(crate) outdated: Option<String>,
    pub(crate) vmms: BTreeMap<VmId, Vmm>,
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

    /// Has the VM run in a process with this id.
    pub(crate) fn set_pid(&mut self, vm: VmId, pid: u32) {
        self.vmms.get_mut(&vm).unwrap().launched.pid = pid;
    }

    pub(crate) fn forget(&mut self, vm: VmId) {
        self.vmms.remove(&vm);
    }

    /// Whether the guest that is asked now reports that it has reseeded its random number generators.
    pub(crate) fn reseeds(&mut self) -> bool {
        let keeps = self.guests_keep_randomness > 0;
        self.guests_keep_randomness = self.guests_keep_randomness.saturating_sub(1);
        !keeps
    }

    /// The VMs that no caller has.
    pub(crate) fn uncommitted(&self) -> usize {
        self.vmms.values().filter(|vmm| !vmm.committed).count()
    }
}

pub(crate) struct Vmm {
    launched: Launched,
    template: TemplateId,
    committed: bool,
    pub(crate) process: Child,
    /// Whether its processors run.
    pub(crate) runs: bool,
    pub(crate) guest: Option<JoinHandle<()>>,
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

#[expect(clippy::too_many_lines, reason = "one arm per request")]
pub(crate) async fn run_keeper(mut end: KeeperEnd, keeper: Arc<Mutex<FakeKeeper>>) {
    while let Ok(Some((request, answerer))) = end.receive().await {
        let refusal = Answer::Refused(Failure::new(ErrorCode::Internal, "/run/skep: refused"));
        match request {
            Request::Launch { .. } if keeper.lock().unwrap().goes_away => return,
            Request::Launch { vm, template, .. } => launch(vm, template, answerer, &keeper).await,
            Request::End { .. } if keeper.lock().unwrap().refuses_ends => {
                answerer.answer(refusal, &[]).await.unwrap();
            }
            // In a task of its own, so that other requests are answered meanwhile.
            Request::End { vm } if keeper.lock().unwrap().holds_ends => {
                tokio::spawn(end_later(vm, answerer, Arc::clone(&keeper)));
            }
            Request::End { vm } => end_vm(vm, answerer, &keeper).await,
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
            Request::SetEgress { egress, .. } => {
                {
                    let mut keeper = keeper.lock().unwrap();
                    keeper.policies.push(egress.policy);
                    keeper.accounts.insert(egress.account);
                }
                answerer.answer(Answer::EgressSet, &[]).await.unwrap();
            }
            Request::Attach { vm } => attach(vm, answerer, &keeper).await,
            Request::RemoveTemplate { template } => {
                keeper.lock().unwrap().removed.push(template);
                answerer.answer(Answer::TemplateRemoved, &[]).await.unwrap();
            }
            Request::ListTemplates { .. } => {
                answerer.answer(Answer::Templates { templates: Vec::new() }, &[]).await.unwrap();
            }
            request @ (Request::PrepareCapture { .. }
            | Request::Capture { .. }
            | Request::StoreCapture { .. }
            | Request::DropCapture { .. }
            | Request::ReserveAddress { .. }
            | Request::EndReservation { .. }) => answer_for_disk(request, answerer, &keeper).await,
            Request::BuildTemplate { .. }
            | Request::BootDisk { .. }
            | Request::TemplateStatus { .. }
            | Request::Usage { .. }
            | Request::AdmitToApi { .. }
            | Request::EgressReport { .. }
            | Request::EgressTotals
            | Request::Tls { .. }
            | Request::Helper { .. }
            | Request::Restart
            | Request::Ready
            | Request::Serving
            | Request::Unable { .. } => answerer.answer(refusal, &[]).await.unwrap(),
        }
    }
}

async fn end_later(vm: VmId, answerer: Answerer, keeper: Arc<Mutex<FakeKeeper>>) {
    keeper.lock().unwrap().ends_held += 1;
    while keeper.lock().unwrap().holds_ends {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    keeper.lock().unwrap().ends_held -= 1;
    end_vm(vm, answerer, &keeper).await;
}

async fn end_vm(vm: VmId, answerer: Answerer, keeper: &Mutex<FakeKeeper>) {
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

async fn launch(vm: VmId, template: TemplateId, answerer: Answerer, keeper: &Arc<Mutex<FakeKeeper>>) {
    let (refused, hang_up, too_little, pid) = {
        let mut keeper = keeper.lock().unwrap();
        keeper.launched += 1;
        keeper.templates_launched.push(template);
        let refused = keeper.launches_until_refusal.is_some_and(|until| keeper.launched > until);
        let hang_up = keeper.guests_hang_up > 0;
        keeper.guests_hang_up = keeper.guests_hang_up.saturating_sub(1);
        (refused, hang_up, keeper.hands_over_too_little, keeper.pids.pop_front())
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
        pid: pid.unwrap_or_else(|| process.id()),
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

async fn attach(vm: VmId, answerer: Answerer, keeper: &Arc<Mutex<FakeKeeper>>) {
    let [(monitor, m), (agent, guest), (console, c)] = [(); 3].map(|()| StdStream::pair().unwrap());
    introduce(&m, vm);
    let (launched, pidfd) = {
        let this = Arc::clone(keeper);
        let mut keeper = keeper.lock().unwrap();
        let hang_up = keeper.guests_hang_up > 0;
        keeper.guests_hang_up = keeper.guests_hang_up.saturating_sub(1);
        let is_silent = keeper.guests_stay_silent > 0;
        keeper.guests_stay_silent = keeper.guests_stay_silent.saturating_sub(1);
        let other_release = keeper.answer_of_other_release.clone();
        let vmm = keeper.vmms.get_mut(&vm).unwrap();
        // A VMM serves one stream at a time.
        vmm.guest.take().into_iter().for_each(|guest| guest.abort());
        vmm.guest = (!hang_up).then(|| match other_release {
            _ if is_silent => tokio::spawn(keep_open(guest)),
            Some(answer) => tokio::spawn(async move { play(tokio_stream(guest), &answer).await.unwrap() }),
            None => spawn_guest(vm, guest, this),
        });
        vmm._streams = [m, c];
        (vmm.launched.clone(), pidfd_open(Pid::from_child(&vmm.process), PidfdFlags::NONBLOCK).unwrap())
    };
    let descriptors: Vec<OwnedFd> = vec![pidfd, monitor.into(), agent.into(), console.into()];
    answerer.answer(Answer::Attached(launched), &descriptors).await.unwrap();
}

/// The end of a guest that never reads, until its task is aborted.
async fn keep_open(_guest: StdStream) {
    std::future::pending().await
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
