//! Pausing and resuming real VMs. What stands still is seen by counters that guests write to their consoles, which the
//! server reads also while a VM is paused.

mod thorough;

use std::{collections::BTreeSet, fs};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Skep, command, eventually, output_of, send},
    takeover::{Streamed, Victim, assert_in_order},
};

/// Counts in memory, and writes each number to the console. It starts no program for a number, because that takes an emulated guest
/// longer than the pause between two of them: nothing is ever written to what it reads from.
const COUNT: &str = "mkfifo /dev/shm/silent
(exec bash -c 'exec 3<>/dev/shm/silent; n=0; while :; do n=$((n+1)); echo tick $n; read -t 0.05 -u 3; done' \
    </dev/null >/dev/console 2>&1 &)";
/// So many numbers of a VM that runs are a while in which a paused one would have counted too.
const WHILE: u64 = 20;
/// A VMM whose processors stand still may use so many ticks of CPU time, in which it answers the server.
const FEW_TICKS: u64 = 2;
/// How far a guest's clock may be off after a request of a loaded machine. A pause of these tests takes longer.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_millis(800);

/// A VM that counts.
struct Counter<'a> {
    skep: &'a Skep,
    pid: u64,
    path: String,
}

impl<'a> Counter<'a> {
    /// All numbers on the console.
    async fn numbers(&self) -> Vec<u64> {
        let console = self.skep.get(&format!("{}/console", self.path)).await.ok(200);
        let text = console["console"].as_str().unwrap();
        // The last line may not be whole.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter_map(|line| line.trim().strip_prefix("tick ")?.parse().ok()).collect()
    }

    async fn last(&self) -> u64 {
        self.numbers().await.last().copied().unwrap_or(0)
    }

    async fn passes(&self, number: u64) {
        eventually(&format!("number {number} of VM {}", self.pid), async || self.last().await >= number)
            .await;
    }

    /// Waits until this VM has counted on for a while.
    async fn counts_on(&self) {
        self.passes(self.last().await + WHILE).await;
    }

    async fn pause(&self) -> Value {
        self.skep.post(&format!("{}/pause", self.path), &json!({})).await.ok(200)
    }

    async fn resume(&self) -> Value {
        send(self.skep.request(Method::POST, &format!("{}/resume", self.path))).await.ok(200)
    }

    /// The CPU time of the VMM, in ticks of the kernel.
    fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    async fn assert_clock_is_right(&self) {
        let before = Timestamp::now();
        let output = self.skep.output(self.pid, "date -u +%Y-%m-%dT%H:%M:%S.%NZ").await;
        let (clock, after) = (output.parse::<Timestamp>().unwrap(), Timestamp::now());
        let near = before - CLOCK_TOLERANCE..=after + CLOCK_TOLERANCE;
        assert!(near.contains(&clock), "{before} {clock} {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_vm_stands_still_and_goes_on_where_it_was() {
    let skep = Skep::start().await;
    let [vm, other] = counters(&skep).await;
    stands_still(&vm, &other).await;
    is_refused_where_it_must_run(&skep, &vm).await;
    is_shown_as_paused(&skep, &vm).await;
    a_call_goes_on(&skep, &vm, &other).await;
    is_paused_by_its_own_account_and_scope_only(&skep, &vm).await;
    goes_by_the_command(&skep, &vm).await;
    requests_at_once_end_in_one_state(&skep, &vm, &other).await;
    ends_in_every_way(&skep, vm, other).await;
    assert_in_order(&skep).await;
}

async fn stands_still(vm: &Counter<'_>, other: &Counter<'_>) {
    let skep = vm.skep;
    skep.output(vm.pid, "echo in-memory > /dev/shm/kept; echo on-disk > /root/kept").await;
    let used = skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].clone();
    let paused = vm.pause().await;
    assert_eq!((&paused["state"], &paused["paused_to"]), (&json!("paused"), &json!("memory")), "{paused}");
    assert_eq!(vm.pause().await["state"], "paused", "again");
    // What it printed before may be under way to the server.
    other.counts_on().await;
    let (number, cpu, busy) = (vm.last().await, vm.cpu_ticks(), other.cpu_ticks());
    other.counts_on().await;
    assert_eq!(vm.last().await, number, "it counted while it was paused");
    let (cpu, busy) = (vm.cpu_ticks() - cpu, other.cpu_ticks() - busy);
    // On a busy machine the other VM may get little, too.
    assert!(cpu <= FEW_TICKS || cpu * 20 <= busy, "it used {cpu} ticks of CPU time, another VM {busy}");
    let status = skep.get("/api/swarm/status").await.ok(200);
    assert_eq!(status["capacity"]["memory_used_mb"], used, "{status}");

    let resumed = vm.resume().await;
    assert_eq!((&resumed["state"], &resumed["paused_to"]), (&json!("running"), &Value::Null), "{resumed}");
    assert_eq!(vm.resume().await["state"], "running", "again");
    vm.assert_clock_is_right().await;
    assert_eq!(skep.output(vm.pid, "cat /dev/shm/kept /root/kept").await, "in-memory\non-disk");
    vm.passes(number + WHILE).await;
    let numbers = vm.numbers().await;
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
}

async fn is_refused_where_it_must_run(skep: &Skep, vm: &Counter<'_>) {
    vm.pause().await;
    let pid = vm.pid;
    let exec = json!({"command": "true"});
    let answers = [
        skep.post(&format!("{}/exec", vm.path), &exec).await,
        skep.post("/api/exec", &json!({"command": "true", "vm": pid})).await,
        skep.post("/api/exec", &json!({"command": "true", "vm": pid, "stream": true})).await,
        skep.get(&format!("{}/exec/exec_1", vm.path)).await,
        skep.get(&format!("{}/exec", vm.path)).await,
        skep.get(&format!("/api/files/read?path=/etc/hostname&vm={pid}")).await,
        skep.get(&format!("/api/ls?path=/etc&vm={pid}")).await,
        skep.get(&format!("/api/files/watch?path=/etc&vm={pid}")).await,
        skep.post("/api/files/write", &json!({"path": "/root/new", "content": "", "vm": pid})).await,
        send(skep.request(Method::PUT, &format!("/api/files/raw?path=/root/new&vm={pid}")).body("x")).await,
        skep.get(&format!("/api/git/status?path=/root&vm={pid}")).await,
        skep.post("/api/git/init", &json!({"path": "/root/repository", "vm": pid})).await,
    ];
    for answer in answers {
        assert!(answer.refused(409, "vm_paused").contains("resume it first"), "{answer:?}");
    }
    // Without the guest.
    skep.get(&vm.path).await.ok(200);
    skep.get(&format!("{}/console", vm.path)).await.ok(200);
    let change = json!({"name": "sleeper", "metadata": {"a": 1}});
    let changed = send(skep.request(Method::PATCH, &vm.path).json(&change)).await.ok(200);
    assert_eq!((&changed["name"], &changed["state"]), (&json!("sleeper"), &json!("paused")));
    vm.resume().await;
    skep.output(pid, "true").await;
    let refused = skep.post(&format!("{}/pause", vm.path), &json!({"to": "tape"})).await;
    assert!(refused.refused(400, "invalid_value").contains("tape"), "{refused:?}");
    skep.post(&format!("{}/pause", vm.path), &json!({"how": 1})).await.refused(400, "unknown_field");
    assert_eq!(skep.get(&vm.path).await.ok(200)["state"], "running", "a refusal pauses nothing");
}

async fn is_shown_as_paused(skep: &Skep, vm: &Counter<'_>) {
    vm.pause().await;
    let status = skep.get("/api/swarm/status").await.ok(200);
    let states: BTreeSet<&str> =
        status["vms"].as_array().unwrap().iter().map(|vm| vm["state"].as_str().unwrap()).collect();
    assert_eq!(states, BTreeSet::from(["paused", "running"]));
    for (query, count) in [("", 2), ("?state=running", 1), ("?state=paused", 1), ("?state=ended", 0)] {
        let list = skep.get(&format!("/api/vms{query}")).await.ok(200);
        assert_eq!(list["vms"].as_array().unwrap().len(), count, "{query}: {list}");
    }
    let metrics = send(skep.request(Method::GET, "/metrics")).await;
    let text = metrics.body.as_str().unwrap();
    for line in ["skep_vms{state=\"paused\"} 1", "skep_account_vms{account=\"default\",state=\"paused\"} 1"] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    vm.resume().await;
}

async fn a_call_goes_on(skep: &Skep, vm: &Counter<'_>, other: &Counter<'_>) {
    let slow = "echo begun; while [ ! -e /dev/shm/go ]; do sleep 0.1; done; echo went on";
    let mut call = Streamed::begin(skep, vm.pid, slow).await;
    call.wait_for_output("begun\n".len()).await;
    vm.pause().await;
    other.counts_on().await;
    vm.resume().await;
    skep.output(vm.pid, ": > /dev/shm/go").await;
    let (kind, exit) = call.rest().await.unwrap();
    assert_eq!((kind.as_str(), &exit["exit_code"]), ("exit", &json!(0)), "{exit}");
    assert_eq!(call.stdout, "begun\nwent on\n");
    vm.assert_clock_is_right().await;
}

async fn is_paused_by_its_own_account_and_scope_only(skep: &Skep, vm: &Counter<'_>) {
    let other = skep.tenant("acme").await;
    let request = json!({"name": "reader", "scopes": ["swarm:read", "swarm:exec"]});
    let reader = skep.post("/api/keys", &request).await.ok(201)["key"].as_str().unwrap().to_owned();
    for verb in ["pause", "resume"] {
        let path = format!("{}/{verb}", vm.path);
        other.post(&path, &json!({})).await.refused(404, "unknown_vm");
        other.post(&format!("/api/swarm/vm/{}/{verb}", vm.pid), &json!({})).await.refused(404, "unknown_vm");
        let missing = skep.bare(Method::POST, &path).bearer_auth(&reader).json(&json!({}));
        send(missing).await.refused(403, "scope_missing");
        send(skep.bare(Method::POST, &path)).await.refused(401, "missing_token");
    }
    assert_eq!(skep.get(&vm.path).await.ok(200)["state"], "running");
}

async fn goes_by_the_command(skep: &Skep, vm: &Counter<'_>) {
    let run = |words: &[&str]| {
        let output = output_of(&mut command(skep, words));
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let id = vm.path.rsplit_once('/').unwrap().1;
    assert_eq!(run(&["pause", "sleeper"]), (Some(0), format!("{} {id} paused\n", vm.pid)));
    assert!(run(&["ps"]).1.lines().any(|line| line.contains("sleeper") && line.contains("paused")));
    let (code, text) = run(&["exec", "sleeper", "true"]);
    assert!(code != Some(0) && text.contains(&format!("VM {id} is paused; resume it first")), "{text}");
    assert_eq!(run(&["resume", "sleeper"]), (Some(0), format!("{} {id} running\n", vm.pid)));
    assert_eq!(run(&["pause", "nobody", "sleeper"]).0, Some(1), "the second one is paused all the same");
    assert_eq!(skep.get(&vm.path).await.ok(200)["state"], "paused");
    let resumed: Value = serde_json::from_str(&run(&["resume", "sleeper", "--json"]).1).unwrap();
    assert_eq!(resumed["state"], "running");
    let arguments = ["events", "--from-start", "--types", "vm.paused,vm.resumed", "-n", "2", "--json"];
    let events: Vec<Value> =
        run(&arguments).1.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&events[0]["type"], &events[0]["vm"], &events[0]["paused_to"]),
        (&json!("vm.paused"), &json!(id), &json!("memory"))
    );
    assert_eq!(
        (&events[1]["type"], &events[1]["vm"], &events[1]["by"]),
        (&json!("vm.resumed"), &json!(id), &json!("request"))
    );
}

async fn requests_at_once_end_in_one_state(skep: &Skep, vm: &Counter<'_>, other: &Counter<'_>) {
    let verbs = ["pause", "resume", "pause", "resume", "resume", "pause", "resume", "pause"];
    let requests = verbs.map(|verb| async move {
        let answer = skep.post(&format!("{}/{verb}", vm.path), &json!({})).await.ok(200);
        assert_eq!(answer["state"], if verb == "pause" { "paused" } else { "running" });
    });
    join_all(requests).await;
    let record = skep.get(&vm.path).await.ok(200);
    let state = &record["state"];
    let named = skep.get(&format!("/api/vms?name={}", record["name"].as_str().unwrap())).await.ok(200);
    assert_eq!(&named["vms"][0]["state"], state, "on record");
    other.counts_on().await;
    let number = vm.last().await;
    if state == "running" {
        vm.passes(number + WHILE).await;
    } else {
        other.counts_on().await;
        assert_eq!(vm.last().await, number);
        vm.resume().await;
        vm.counts_on().await;
    }
}

async fn ends_in_every_way(skep: &Skep, deleted: Counter<'_>, cleaned: Counter<'_>) {
    deleted.pause().await;
    skep.delete(&deleted.path).await.ok(200);
    skep.get(&deleted.path).await.refused(404, "unknown_vm");

    let vms = skep.boot(2).await;
    let [expired, killed] = [at(skep, &vms[0]), at(skep, &vms[1])];
    expired.pause().await;
    send(skep.request(Method::PATCH, &expired.path).json(&json!({"ttl_ms": 1}))).await.ok(200);
    skep.wait_for_end_of(expired.pid).await;

    killed.pause().await;
    crate::harness::kill(u32::try_from(killed.pid).unwrap());
    skep.wait_for_end_of(killed.pid).await;

    cleaned.pause().await;
    assert_eq!(skep.post("/api/swarm/cleanup", &json!({})).await.ok(200)["terminated"], 1);
    let ended = skep.get("/api/vms?state=ended").await.ok(200);
    let reasons: Vec<&str> =
        ended["vms"].as_array().unwrap().iter().map(|vm| vm["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["cleanup", "crashed", "expired", "deleted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_vm_stays_paused_when_server_or_keeper_are_killed() {
    let mut skep = Skep::start().await;
    let [counting, control] = booted(&skep).await;
    // `thorough` kills the keeper alone.
    for victim in [Victim::Server, Victim::Both] {
        let before = at(&skep, &counting).pause().await;
        skep = victim.kill(skep).await;
        let (vm, other) = (at(&skep, &counting), at(&skep, &control));
        let after = skep.get(&vm.path).await.ok(200);
        for fact in ["id", "pid", "ip", "state", "paused_to"] {
            assert_eq!(before[fact], after[fact], "{victim:?}: {fact}");
        }
        skep.post(&format!("{}/exec", vm.path), &json!({"command": "true"})).await.refused(409, "vm_paused");
        other.counts_on().await;
        // The console has only what was printed since the start of this server.
        assert_eq!(vm.last().await, 0, "{victim:?}: it counted while it was paused");
        vm.resume().await;
        vm.assert_clock_is_right().await;
        assert_eq!(skep.output(vm.pid, "cat /dev/shm/kept").await, "kept");
        vm.counts_on().await;
    }
    assert_in_order(&skep).await;
}

/// Two VMs that count.
async fn booted(skep: &Skep) -> [Value; 2] {
    let vms = skep.boot(2).await;
    for vm in &vms {
        skep.output(vm["pid"].as_u64().unwrap(), &format!("echo kept > /dev/shm/kept; {COUNT}")).await;
    }
    vms.try_into().unwrap()
}

async fn counters(skep: &Skep) -> [Counter<'_>; 2] {
    let counters = booted(skep).await.map(|vm| at(skep, &vm));
    for counter in &counters {
        counter.passes(1).await;
    }
    counters
}

/// A VM that counts, on this server.
fn at<'a>(skep: &'a Skep, vm: &Value) -> Counter<'a> {
    Counter {
        skep,
        pid: vm["pid"].as_u64().unwrap(),
        path: format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap()),
    }
}
