//! Very many boots and ends by many clients, while processes are killed at random: nothing may be left of them, and
//! every request must be answered with what is true. By `make soak`.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use rand::{Rng, SeedableRng, rngs::StdRng};
use reqwest::{Method, RequestBuilder};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{Answer, Skep, eventually, kill, try_send};

mod copies;
mod node;
mod resources;
mod without_reseed;
mod work;

use resources::Account;

/// Clients at the same time.
const CLIENTS: u64 = 16;
/// VMs that are kept ready, so that they are taken, refilled and killed too.
const POOL: u64 = 4;
/// One in this many VMs is killed by the client that booted it.
const KILLED: u32 = 12;
/// One in this many turns kills any VMM, also of a VM that boots or is parked.
const STRAY: u32 = 40;
/// One in this many turns kills the server.
const SERVER_KILLED: u32 = 50;
/// How soon a killed VMM is noticed at the latest.
const NOTICED: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn boots_with_vmms_killed_at_random_leave_nothing() {
    soak(number("SOAK_BOOTS", 10_000), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boots_with_servers_killed_too_leave_nothing() {
    soak(number("SOAK_BOOTS", 10_000) / 10, true).await;
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

async fn soak(boots: u64, kill_servers: bool) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("SOAK_SEED", now.as_secs());
    println!("SOAK_SEED={seed}, {boots} boots, servers are killed: {kill_servers}");
    let begun = Instant::now();
    let skep = Skep::start_on(tempfile::tempdir().unwrap(), &["--pool-size", &POOL.to_string()]).await;
    let soak = Soak::new(skep, kill_servers);
    let early = boots.div_ceil(10);
    soak.run(seed, early).await;
    let before = Account::at_rest(&soak.skep, POOL).await;
    println!("{early} boots after {:.0?}: {before:?}", begun.elapsed());
    soak.run(seed + CLIENTS, boots - early).await;
    let after = Account::at_rest(&soak.skep, POOL).await;
    println!("{boots} boots after {:.0?}: {after:?}\n{:#?}", begun.elapsed(), soak.answers());
    after.assert_no_more_than(&before, 2 * CLIENTS as usize);
    assert!(soak.answers().contains_key("boot 201"));
    // The drop checks the rest.
}

/// A server, the faults injected into it, and its answers.
struct Soak {
    skep: Skep,
    kill_servers: bool,
    left: AtomicU64,
    killed: Mutex<Killed>,
    server_being_killed: tokio::sync::Mutex<()>,
    answers: Mutex<BTreeMap<String, u64>>,
}

/// Who was killed.
#[derive(Default)]
struct Killed {
    vmms: HashSet<u64>,
    last_vmm: Option<Instant>,
}

impl Soak {
    fn new(skep: Skep, kill_servers: bool) -> Self {
        Self {
            skep,
            kill_servers,
            left: AtomicU64::new(0),
            killed: Mutex::default(),
            server_being_killed: tokio::sync::Mutex::default(),
            answers: Mutex::default(),
        }
    }

    fn answers(&self) -> BTreeMap<String, u64> {
        self.answers.lock().unwrap().clone()
    }

    /// Boots this many VMs by all clients, and ends them.
    async fn run(&self, seed: u64, boots: u64) {
        self.left.store(boots, Ordering::SeqCst);
        let clients = (0..CLIENTS).map(|client| async move {
            let mut dice = StdRng::seed_from_u64(seed + client);
            while self.take_one() {
                self.turn(&mut dice).await;
            }
        });
        join_all(clients).await;
        if self.kill_servers {
            // VMs of boots whose answer was lost with the server.
            self.skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
        }
    }

    fn take_one(&self) -> bool {
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    async fn turn(&self, dice: &mut StdRng) {
        if self.kill_servers && dice.random_ratio(1, SERVER_KILLED) {
            self.kill_server().await;
        }
        if dice.random_ratio(1, STRAY) {
            let vmms = self.skep.vmms();
            if !vmms.is_empty() {
                self.kill(vmms[dice.random_range(0..vmms.len())]);
            }
        }
        // Sometimes more than one: where one of them fails, none may be left.
        let more = if dice.random_ratio(1, 4) && self.take_one() { 1 } else { 0 };
        for vm in self.boot(1 + more).await {
            let doomed =
                dice.random_ratio(1, KILLED).then(|| Duration::from_millis(dice.random_range(0..100)));
            self.use_and_end(&vm, doomed).await;
        }
    }

    /// The booted VMs; none where the boot was refused for a valid reason.
    async fn boot(&self, count: u64) -> Vec<Value> {
        let begun = Instant::now();
        let request = self.skep.request(Method::POST, "/api/swarm/boot").json(&json!({"count": count}));
        let Some(answer) = self.ask("boot", request).await else { return Vec::new() };
        match (answer.status.as_u16(), code(&answer)) {
            (201, _) => answer.body["vms"].as_array().unwrap().clone(),
            (503, "no_capacity") => Vec::new(),
            // It is killed some time before that is noticed.
            (503, "boot_failed") if self.killed.lock().unwrap().since(begun - NOTICED) => Vec::new(),
            _ if self.kill_servers => Vec::new(),
            _ => panic!("{answer:?}"),
        }
    }

    /// Runs a command in a VM, which is killed after a while where it is doomed, and ends it.
    async fn use_and_end(&self, vm: &Value, doomed: Option<Duration>) {
        let (pid, id) = (vm["pid"].as_u64().unwrap(), vm["id"].as_str().unwrap());
        let path = format!("/api/swarm/vm/{id}");
        let command = if doomed.is_some() { "sleep 600" } else { "uname -n" };
        let exec =
            self.skep.request(Method::POST, &format!("{path}/exec")).json(&json!({"command": command}));
        let kill = async {
            if let Some(pause) = doomed {
                sleep(pause).await;
                self.kill(u32::try_from(pid).unwrap());
            }
        };
        if let (Some(answer), ()) = tokio::join!(self.ask("exec", exec), kill) {
            match (answer.status.as_u16(), code(&answer)) {
                (200, _) => {
                    assert_eq!(answer.body["stdout"], format!("{}\n", id.replace('_', "-")), "{answer:?}")
                }
                (404, "unknown_vm") | (409, "vm_ended") if self.was_killed(pid) => {}
                _ if self.kill_servers => {}
                _ => panic!("{vm}: {answer:?}"),
            }
        }
        loop {
            // An answer that was lost with the server is asked for again.
            let Some(answer) = self.ask("end", self.skep.request(Method::DELETE, &path)).await else {
                continue;
            };
            match (answer.status.as_u16(), code(&answer)) {
                (200, _) => break,
                (404, "unknown_vm") if self.was_killed(pid) || self.kill_servers => break,
                _ if self.kill_servers => self.wait_for_server().await,
                _ => panic!("{vm}: {answer:?}"),
            }
        }
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        assert!(!groups.contains(id), "{vm} was ended, and its process lives: {groups}");
        if let Some(answer) = self.ask("look", self.skep.request(Method::GET, &path)).await
            && !self.kill_servers
        {
            answer.refused(404, "unknown_vm");
        }
    }

    /// Sends a request, and notes its answer, which must have the shape of one. `None` where the server was killed
    /// meanwhile; another serves then.
    async fn ask(&self, what: &str, request: RequestBuilder) -> Option<Answer> {
        let answer = match try_send(request).await {
            Ok(answer) => answer,
            Err(error) => {
                assert!(self.kill_servers && !error.is_timeout(), "{what}: {error:?}");
                *self.answers.lock().unwrap().entry(format!("{what} lost")).or_default() += 1;
                self.wait_for_server().await;
                return None;
            }
        };
        let status = answer.status.as_u16();
        if !answer.status.is_success() {
            answer.refused(status, code(&answer));
        }
        let outcome = format!("{what} {status} {}", code(&answer));
        *self.answers.lock().unwrap().entry(outcome.trim_end().to_owned()).or_default() += 1;
        Some(answer)
    }

    async fn wait_for_server(&self) {
        eventually("a server", async || {
            let asked = try_send(self.skep.request(Method::GET, "/api/swarm/status")).await;
            asked.is_ok_and(|answer| answer.status == 200)
        })
        .await;
    }

    async fn kill_server(&self) {
        let Ok(_only) = self.server_being_killed.try_lock() else { return };
        if let Some(server) = self.skep.server_pid() {
            kill(server);
            self.skep.wait_for_server_after(server).await;
        }
    }

    /// Kills a VMM, unless it has ended and its process id was reused.
    fn kill(&self, vmm: u32) {
        let Ok(pidfd) = pidfd_open(Pid::from_raw(vmm.cast_signed()).unwrap(), PidfdFlags::empty()) else {
            return;
        };
        let groups = std::fs::read_to_string(format!("/proc/{vmm}/cgroup")).unwrap_or_default();
        if groups.contains(&self.skep.namespace()) {
            let mut killed = self.killed.lock().unwrap();
            killed.vmms.insert(vmm.into());
            killed.last_vmm = Some(Instant::now());
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    fn was_killed(&self, vmm: u64) -> bool {
        self.killed.lock().unwrap().vmms.contains(&vmm)
    }
}

impl Killed {
    fn since(&self, then: Instant) -> bool {
        self.last_vmm.is_some_and(|last| last > then)
    }
}

/// The refusal's code; nothing in an answer that is none.
fn code(answer: &Answer) -> &str {
    answer.headers.get("skep-error").map_or("", |code| code.to_str().unwrap())
}
