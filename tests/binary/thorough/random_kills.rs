//! Server, keeper, VMMs and agents are killed at random times while VMs boot, end and run commands: every VM that a
//! caller received in an answer exists, the output of each command is complete, and there is nothing else.

mod copies;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use reqwest::{Method, Response};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    harness::{Skep, StoppedServer, eventually},
    takeover::{Streamed, VICTIMS, Victim, assert_in_order, listed},
};

const ROUNDS: usize = 30;
/// Maximum number of VMs that a round leaves to the next one.
const KEPT: usize = 3;
/// The latest moment of a kill, in ms: a boot, an end and the command of the round take about as long.
const LATEST_MS: u64 = 700;

/// Prints some lines, for about as long as a round takes.
const TALK: &str = "n=0; while [ $n -lt 6 ]; do echo line $n; sleep 0.1; n=$((n+1)); done; exit 7";
/// Overwrites the code of the agent, which no signal from inside can kill.
const END_OF_AGENT: &str = "set -- $(grep -m 1 r-xp /proc/1/maps); first=0x${1%-*}; last=0x${1#*-}
    dd if=/dev/zero of=/proc/1/mem bs=4096 seek=$((first / 4096)) count=$(((last - first) / 4096)) conv=notrunc
    sleep 60";

/// Reproducible pseudo-random numbers (Marsaglia's xorshift).
struct Rng(u64);

impl Rng {
    /// The seed is that of the environment, or of the clock, and is printed.
    fn seeded() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed =
            std::env::var("SKEP_TEST_SEED").map_or(now.as_nanos() as u64 | 1, |seed| seed.parse().unwrap());
        eprintln!("SKEP_TEST_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_of<T>(&mut self, all: &[T]) -> Option<T>
    where
        T: Clone,
    {
        let at = self.below((all.len() as u64).max(1));
        all.get(usize::try_from(at).unwrap()).cloned()
    }
}

/// The fault that is injected in a round.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Planned,
    Killed(Victim),
    Vmm,
    Agent,
}

impl Fault {
    /// The faults take turns.
    fn of(round: usize) -> Self {
        match round % 6 {
            0 => Self::Vmm,
            1 => Self::Agent,
            2 => Self::Planned,
            other => Self::Killed(VICTIMS[other - 3]),
        }
    }
}

/// The VMs in the answers that a caller received: process ids by VM id.
type KnownVms = BTreeMap<String, u64>;

fn known_vms(vms: &[Value]) -> KnownVms {
    vms.iter().map(|vm| (vm["id"].as_str().unwrap().to_owned(), vm["pid"].as_u64().unwrap())).collect()
}

/// The requests in progress when the fault is injected.
struct InProgress {
    boot: JoinHandle<reqwest::Result<Response>>,
    end: Option<(String, JoinHandle<reqwest::Result<Response>>)>,
    command: Option<(u64, JoinHandle<reqwest::Result<Response>>)>,
}

impl InProgress {
    fn begin(skep: &Skep, known_vms: &KnownVms, dice: &mut Rng) -> Self {
        let count = json!({"count": 1 + dice.below(2)});
        let boot = tokio::spawn(skep.request(Method::POST, "/api/swarm/boot").json(&count).send());
        let end = known_vms.keys().next().filter(|_| known_vms.len() > 1).map(|id| {
            let path = format!("/api/swarm/vm/{id}");
            (id.clone(), tokio::spawn(skep.request(Method::DELETE, &path).send()))
        });
        let command = known_vms.values().next_back().map(|pid| {
            let path = format!("/api/swarm/vm/{pid}/exec");
            let talk = json!({"command": TALK, "stream": true, "timeout": 600_000});
            (*pid, tokio::spawn(skep.request(Method::POST, &path).json(&talk).send()))
        });
        Self { boot, end, command }
    }

    /// The VMs in the answer of the boot.
    async fn booted(boot: JoinHandle<reqwest::Result<Response>>) -> KnownVms {
        match boot.await.unwrap() {
            Ok(answer) => {
                let answer = answer.json::<Value>().await.unwrap_or_default();
                known_vms(answer["vms"].as_array().unwrap_or(&Vec::new()))
            }
            Err(_) => KnownVms::new(),
        }
    }
}

/// Follows a command until it has ended. None of its output may be lost.
async fn assert_whole(skep: &Skep, pid: u64, response: Response) {
    let mut streamed = Streamed::of(response);
    loop {
        match streamed.rest().await {
            Some((kind, exit)) if kind == "exit" => {
                assert_eq!((&exit["exit_code"], &exit["truncated"]), (&json!(7), &json!(false)));
                assert_eq!(streamed.stdout.lines().count(), 6, "{}", streamed.stdout);
                return;
            }
            _ => streamed = streamed.again(skep, pid).await,
        }
    }
}

/// Injects the fault. Returns the affected VM if the caller received an answer about it.
async fn inject(fault: Fault, skep: Skep, known_vms: &KnownVms, dice: &mut Rng) -> (Skep, Option<u64>) {
    match fault {
        Fault::Planned => (planned(skep).await.start().await, None),
        Fault::Killed(victim) => (victim.kill(skep).await, None),
        Fault::Vmm => {
            // Any VMM: of a VM that boots, is known, or ends.
            let Some(pid) = dice.one_of(&skep.vmms()) else { return (skep, None) };
            let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty());
            let _ = pidfd.and_then(|pidfd| pidfd_send_signal(pidfd, Signal::KILL));
            (skep, Some(pid.into()))
        }
        Fault::Agent => {
            let pids: Vec<u64> = known_vms.values().copied().collect();
            let Some(pid) = dice.one_of(&pids) else { return (skep, None) };
            let path = format!("/api/swarm/vm/{pid}/exec");
            let answer = skep.post(&path, &json!({"command": END_OF_AGENT})).await;
            assert!(answer.status != 200, "an agent without code goes on: {answer:?}");
            (skep, Some(pid))
        }
    }
}

async fn planned(skep: Skep) -> StoppedServer {
    tokio::task::spawn_blocking(move || skep.stop_and_leave_vms()).await.unwrap()
}

/// Runs one round. Returns the VMs that are known after it.
async fn round(skep: Skep, mut known: KnownVms, fault: Fault, dice: &mut Rng) -> (Skep, KnownVms) {
    let InProgress { boot, end, command } = InProgress::begin(&skep, &known, dice);
    // At a random time, which is the purpose of this test.
    tokio::time::sleep(Duration::from_millis(dice.below(LATEST_MS))).await;
    let (skep, struck) = inject(fault, skep, &known, dice).await;
    known.extend(InProgress::booted(boot).await);
    if let Some(struck) = struck {
        skep.wait_for_end_of(struck).await;
        known.retain(|_, pid| *pid != struck);
    }
    let ended = match end {
        Some((id, end)) => {
            let confirmed = matches!(end.await.unwrap(), Ok(answer) if answer.status() == 200);
            known.remove(&id);
            Some((id, confirmed))
        }
        None => None,
    };
    let found = known_vms(&listed(&skep).await);
    for (id, pid) in &known {
        assert_eq!(found.get(id), Some(pid), "{fault:?}: {known:?} were announced, {found:?} are there");
    }
    if let Some((id, confirmed)) = ended {
        assert!(
            !confirmed || !found.contains_key(&id),
            "{fault:?}: the end of {id} was confirmed, and the VM lives"
        );
    }
    if let Some((pid, command)) = command
        && let Ok(response) = command.await.unwrap()
        && response.status() == 200
        && found.values().any(|living| *living == pid)
    {
        assert_whole(&skep, pid, response).await;
    }
    assert_in_order(&skep).await;
    // VMs of a boot whose answer was cut off are valid as well.
    (skep, found)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reported_vm_exists_whichever_process_is_killed() {
    let mut dice = Rng::seeded();
    let mut skep = Skep::start().await;
    let mut known = known_vms(&skep.boot(2).await);
    for number in 0..ROUNDS {
        let fault = Fault::of(number);
        eprintln!("round {number}: {fault:?}");
        (skep, known) = round(skep, known, fault, &mut dice).await;
        while known.len() > KEPT {
            let (id, _) = known.pop_first().unwrap();
            skep.delete(&format!("/api/swarm/vm/{id}")).await.ok(200);
        }
        // A VM for the fault of the next round.
        if known.is_empty() {
            known = known_vms(&skep.boot(1).await);
        }
    }
    eventually("no VM but those", async || listed(&skep).await.len() == known.len()).await;
}
