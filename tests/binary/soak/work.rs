//! VMs that compile, test, serve and copy for an hour must not end.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::number;
use crate::harness::{Skep, send};

/// The maximum timeout of a command, because a busy machine makes steps slow, which is not an error here.
const STEP_LIMIT_MS: u64 = 3_600_000;
/// Longer than any request lasts.
const PATIENCE: Duration = Duration::from_millis(STEP_LIMIT_MS + 300_000);

/// Something to serve, and a repository with a test.
const SET_UP: &str = r"set -e
mkdir -p /root/served /root/project && cd /root/project
for number in $(seq 20); do head -c 100000 /dev/urandom > /root/served/$number; done
printf 'import json, unittest\nclass Works(unittest.TestCase):\n  def test_round(self):\n    for n in range(200):\n      self.assertEqual(json.loads(json.dumps({str(n): [n] * n})), {str(n): [n] * n})\n' > test_works.py
git -c init.defaultBranch=main init -q . && git config user.email soak@example.com && git config user.name soak";

/// The steps that each VM repeats. The last one drops the guest's caches, so that its code is read and translated again
/// at other addresses.
const STEPS: [(&str, &str); 5] = [
    (
        "compile",
        "set -e; rm -rf /root/compiled; mkdir /root/compiled; cd /usr/lib/python3*/
         cp -r json email unittest http asyncio /root/compiled; python3 -m compileall -q -f /root/compiled",
    ),
    (
        "test",
        "set -e; cd /root/project; python3 -m unittest -q test_works; date +%N > changed; git add -A
         git commit -q -m round; git log --oneline | head -n 1; git gc -q --auto",
    ),
    (
        "serve",
        // Both servers run on from round to round, unless the guest ran out of memory and killed them.
        "set -e; for port in 8001 8002; do
           curl -s -o /dev/null http://127.0.0.1:$port/1 || {
             nohup setsid python3 -m http.server --bind 127.0.0.1 --directory /root/served $port > /dev/null 2>&1 < /dev/null &
             for try in $(seq 600); do curl -s -o /dev/null http://127.0.0.1:$port/1 && break; sleep 0.2; done; }
         done
         for number in $(seq 20); do for port in 8001 8002; do
           curl -sf http://127.0.0.1:$port/$number | cmp - /root/served/$number; done; done",
    ),
    (
        "copy",
        "set -e; head -c 48M /dev/urandom > /root/copied; cp /root/copied /root/again; cmp /root/copied /root/again
         rm /root/copied /root/again",
    ),
    (
        "new code",
        "echo 3 > /proc/sys/vm/drop_caches
         python3 -c 'import unittest, json, ssl, asyncio, email, http.server'",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_compile_test_serve_and_copy_for_an_hour_live_on() {
    let (vms, minutes) = (number("SOAK_WORK_VMS", 8), number("SOAK_WORK_MINUTES", 60));
    let skep = Skep::start().await;
    let booted = skep.boot(u32::try_from(vms).unwrap()).await;
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let done = join_all(booted.iter().map(|vm| work(&skep, vm, until))).await;
    for (vm, Done { rounds, killed }) in booted.iter().zip(&done) {
        let (taken, limit) = memory_mb(&skep, vm);
        let id = vm["id"].as_str().unwrap();
        println!("{id}: {rounds} rounds, {killed} steps were killed inside, {taken} of {limit} MiB");
        assert!(*rounds > 0, "{vm} did nothing");
    }
    let ended = skep.get("/api/vms?state=ended").await.ok(200);
    assert_eq!(ended["vms"], json!([]), "a VM ended");
    assert_eq!(skep.count().await, vms);
}

/// What one VM did.
#[derive(Default)]
struct Done {
    rounds: u64,
    /// Steps that the guest killed because it ran out of memory. Its VM has to live on.
    killed: u64,
}

/// Repeats the steps until this time.
async fn work(skep: &Skep, vm: &Value, until: Instant) -> Done {
    let vm = vm["id"].as_str().unwrap();
    run(skep, vm, "set-up", SET_UP).await;
    let mut done = Done::default();
    while Instant::now() < until {
        for (name, step) in STEPS {
            done.killed += u64::from(!run(skep, vm, name, step).await);
        }
        // Through the API too.
        let bytes = vec![b'x'; 4 << 20];
        let path = format!("/api/files/raw?vm={vm}&path=/root/uploaded");
        let uploaded = send(skep.request(Method::PUT, &path).body(bytes).timeout(PATIENCE)).await;
        assert!(uploaded.status.is_success(), "{vm}: {uploaded:?}");
        run(skep, vm, "upload", "test $(stat -c %s /root/uploaded) = 4194304").await;
        done.rounds += 1;
    }
    done
}

/// Runs a step. `false` where the guest killed it.
async fn run(skep: &Skep, vm: &str, name: &str, command: &str) -> bool {
    let request = json!({"command": command, "timeout": STEP_LIMIT_MS});
    let path = format!("/api/swarm/vm/{vm}/exec");
    let answer = send(skep.request(Method::POST, &path).json(&request).timeout(PATIENCE)).await;
    let killed = answer.body["signal"] == "SIGKILL" && answer.body["timed_out"] == false;
    let ran = answer.status == 200 && (answer.body["exit_code"] == 0 || killed);
    assert!(ran, "{vm}, {name}: {answer:?}");
    !killed
}

/// What cannot be reclaimed of a VM's memory, and its limit.
fn memory_mb(skep: &Skep, vm: &Value) -> (u64, u64) {
    let groups = skep.groups_of(vm["id"].as_str().unwrap());
    let read = |files: [&str; 2]| {
        let mut paths = groups.iter().flat_map(|group| files.map(|file| group.join(file)));
        paths.find_map(|path: PathBuf| fs::read_to_string(path).ok()).unwrap()
    };
    let stat = read(["memory.stat", "memory.stat"]);
    let taken = stat.lines().find_map(|line| line.strip_prefix("total_rss ").or(line.strip_prefix("anon ")));
    let limit = read(["memory.limit_in_bytes", "memory.max"]);
    let mb = |text: &str| text.trim().parse::<u64>().unwrap() >> 20;
    (mb(taken.unwrap()), mb(&limit))
}
