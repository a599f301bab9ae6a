//! A guest that exhausts a resource: processes, memory, disk, console, channel, network. The server and a sibling VM
//! keep working.

mod thorough;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{Skep, eventually};

/// The server's limit on a private layer, in bytes.
const LAYER_BYTES: u64 = 2048 << 20;
/// What one stream of an answer may hold.
const KEPT_BYTES: usize = 1 << 20;

/// How long a guest may take to recover: an emulated guest without memory is slow at killing processes.
const RECOVERY: Duration = Duration::from_secs(240);

/// A guest and its sibling.
pub(crate) struct Pair {
    pub(crate) skep: Skep,
    hog: Value,
    sibling: u64,
}

impl Pair {
    async fn start() -> Self {
        Self::of(Skep::start().await).await
    }

    /// Boots both on this server.
    pub(crate) async fn of(skep: Skep) -> Self {
        let vms = skep.boot(2).await;
        let sibling = vms[1]["pid"].as_u64().unwrap();
        Self { skep, hog: vms[0].clone(), sibling }
    }

    pub(crate) fn hog(&self) -> u64 {
        self.hog["pid"].as_u64().unwrap()
    }

    /// Runs a command in the hog with a timeout, while the sibling works.
    pub(crate) async fn run(&self, command: &str, timeout_ms: u64) -> Value {
        let request = json!({"command": command, "timeout": timeout_ms});
        let path = format!("/api/swarm/vm/{}/exec", self.hog());
        let hog = self.skep.post(&path, &request);
        // An answer must come some time after the command's timeout at the latest.
        let hog = async { tokio::time::timeout(Duration::from_millis(timeout_ms + 60_000), hog).await };
        let (answer, ()) = tokio::join!(hog, self.others_work());
        self.others_work().await;
        answer.unwrap().body
    }

    pub(crate) async fn others_work(&self) {
        assert_eq!(self.skep.output(self.sibling, "echo alive | tr a-z A-Z").await, "ALIVE");
        assert_eq!(self.skep.health().await["status"], "ok");
    }

    /// Waits until the hog works again, or has ended with a reported reason.
    pub(crate) async fn is_well_or_ended(&self) {
        let path = format!("/api/swarm/vm/{}", self.hog());
        let begun = Instant::now();
        loop {
            if self.skep.get(&path).await.status == 404 {
                let log = self.skep.log();
                assert!(log.contains("out_of_memory") || log.contains("crashed"), "{log}");
                return;
            }
            let request = json!({"command": "echo on", "timeout": 10_000});
            let answer = self.skep.post(&format!("{path}/exec"), &request).await;
            if answer.body["stdout"] == "on\n" {
                return;
            }
            assert!(begun.elapsed() < RECOVERY, "neither well nor ended: {answer:?}");
        }
    }
}

pub(crate) const BOMB: &str = "bomb() { bomb | bomb & }; bomb; sleep 600";

/// Takes memory until it gets no more.
pub(crate) const TAKE_ALL: &str = "exec python3 -c 'taken = []
while True: taken.append(bytearray(1 << 20))'";

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_exhausts_a_resource_costs_nobody_else_anything() {
    let pair = Pair::start().await;
    has_the_processors_of_its_guest_and_half_a_one(&pair);
    fills_its_memory(&pair).await;
    fills_its_own_layer_and_no_more(&pair).await;
    floods_the_console(&pair).await;
    floods_the_channel(&pair).await;
    floods_the_network(&pair).await;
    has_a_fork_bomb(&pair).await;
}

/// The most that its VMM may have of the machine.
fn has_the_processors_of_its_guest_and_half_a_one(pair: &Pair) {
    let (skep, vm) = (&pair.skep, &pair.hog);
    let quota = vm["vcpus"].as_u64().unwrap() * 100_000 + 50_000;
    let wanted = [("cpu.cfs_quota_us", quota.to_string()), ("cpu.max", format!("{quota} 100000"))];
    let groups = skep.groups_of(vm["id"].as_str().unwrap());
    let found = groups.iter().flat_map(|group| {
        wanted.iter().filter_map(|(file, wanted)| {
            let value = fs::read_to_string(group.join(file)).ok()?;
            Some((value.trim().to_owned(), wanted.clone()))
        })
    });
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty(), "no group of the VM has a quota: {groups:?}");
    assert!(found.iter().all(|(value, wanted)| value == wanted), "{found:?}");
}

async fn fills_its_memory(pair: &Pair) {
    let answer = pair.run(TAKE_ALL, 240_000).await;
    let (signal, timed_out) = (&answer["signal"], &answer["timed_out"]);
    assert!(signal == "SIGKILL" && timed_out == false, "{answer}");
    assert_eq!(pair.skep.output(pair.hog(), "echo on").await, "on");
}

async fn fills_its_own_layer_and_no_more(pair: &Pair) {
    // Most of the space is reserved first without writing, so that little is left to fill.
    let fill = "fallocate -l 1900M /reserved; LC_ALL=C cat /dev/zero > /filled";
    let answer = pair.run(fill, 240_000).await;
    let output = answer["stderr"].as_str().unwrap_or_default();
    assert!(output.contains("No space left") || output.contains("Input/output error"), "{answer}");
    let (length, blocks) = layer_of(pair.hog());
    assert!(length <= LAYER_BYTES && blocks <= LAYER_BYTES, "{length} bytes, {blocks} on the disk");
    let filled = pair.skep.output(pair.hog(), "stat -c %s /filled; rm /reserved /filled; echo on").await;
    let (size, on) = filled.split_once('\n').unwrap();
    // The control: it did write until it was stopped.
    assert!(size.parse::<u64>().unwrap() > 10 << 20 && on == "on", "{filled}");
}

/// Length and space on the disk of a VMM's private layer, in bytes.
pub(crate) fn layer_of(vmm: u64) -> (u64, u64) {
    let open = fs::read_dir(format!("/proc/{vmm}/fd")).unwrap().flatten();
    let layer = open.filter(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        target.ends_with(" (deleted)") && !target.starts_with("/memfd:")
    });
    let found = fs::metadata(layer.map(|entry| entry.path()).next().unwrap()).unwrap();
    (found.len(), found.blocks() * 512)
}

async fn floods_the_console(pair: &Pair) {
    let flood = "yes skep-console-flood | timeout 5 head -c 2M > /dev/console";
    let path = format!("/api/swarm/vm/{}/console", pair.hog());
    let mut console = Value::Null;
    // In this time a busy machine may write less than what is kept.
    eventually("a flood that is cut", async || {
        pair.run(flood, 30_000).await;
        console = pair.skep.get(&path).await.ok(200);
        console["truncated"] == true
    })
    .await;
    let kept = console["console"].as_str().unwrap();
    assert!(kept.len() <= KEPT_BYTES && kept.contains("skep-console-flood"), "{} bytes", kept.len());
    pair.is_well_or_ended().await;
}

async fn floods_the_channel(pair: &Pair) {
    let answer =
        pair.run("head -c 8M /dev/zero | tr '\\0' x; head -c 8M /dev/zero | tr '\\0' y >&2", 120_000).await;
    assert_eq!(answer["truncated"], true, "{}", answer["exit_code"]);
    for stream in ["stdout", "stderr"] {
        let length = answer[stream].as_str().unwrap().len();
        assert!(length > KEPT_BYTES / 2 && length <= KEPT_BYTES + 4096, "{stream}: {length}");
    }
    pair.is_well_or_ended().await;
}

async fn floods_the_network(pair: &Pair) {
    let before = packets_of_guests(&pair.skep);
    let flood = "gateway=$(ip route show default | awk '{print $3}')
        timeout 10 bash -c \"exec 3>/dev/udp/$gateway/9; dd if=/dev/zero bs=1400 count=5000 >&3\"";
    pair.run(flood, 30_000).await;
    let packets = packets_of_guests(&pair.skep) - before;
    assert!(packets > 2_000, "the flood was none: {packets} packets");
    pair.is_well_or_ended().await;
}

/// The packets that all taps of the namespace received from their guests.
fn packets_of_guests(skep: &Skep) -> u64 {
    let count = "cat /sys/class/net/vm*/statistics/rx_packets";
    let output =
        Command::new("ip").args(["netns", "exec", &skep.namespace(), "sh", "-c", count]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse::<u64>().unwrap()).sum()
}

async fn has_a_fork_bomb(pair: &Pair) {
    let answer = pair.run(BOMB, 4_000).await;
    let ended = answer["timed_out"] == true || answer["exit_code"] != 0;
    assert!(ended, "{answer}");
    // In any case, the VM can be ended and replaced by another.
    pair.skep.delete(&format!("/api/swarm/vm/{}", pair.hog())).await.ok(200);
    pair.skep.wait_for_end_of(pair.hog()).await;
    let another = pair.skep.boot_one().await;
    assert_eq!(pair.skep.output(another, "echo alive").await, "alive");
    pair.others_work().await;
}
