//! Fifty VMs of one snapshot, from one call: nothing that has to be unique is shared.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{UNIQUE, shared};
use crate::harness::{Skep, temp_dir};

/// Asked for in one call.
const CLONES: usize = 50;
/// Enough for them, in MiB, by what is promised to each, four times as much in total; what is really free is looked at, too.
const MEMORY_MB: &str = "3250";
/// Of these the first message of TLS is looked at: two runs of `openssl` are a second each in emulation.
const SPEAK_TLS: usize = 8;
/// The most that a clock may be wrong.
const CLOCK_S: f64 = 0.1;
/// How often a clock is asked until the question itself takes less than that, on a machine that is busy.
const QUESTIONS: usize = 500;

/// Is the same by its nature.
const SHARED: &str = "echo release $(sha256sum < /etc/os-release)";

/// The random bytes of a first message of TLS, as the client itself shows it: `openssl` in the guest is both ends.
const CLIENT_RANDOM: &str = r#"
openssl s_server -nocert -accept 127.0.0.1:4433 >/dev/null 2>&1 &
server=$!
for _ in $(seq 100); do
    hello=$(openssl s_client -connect 127.0.0.1:4433 -msg </dev/null 2>/dev/null | grep -A 3 ClientHello | tail -n 3)
    [ -n "$hello" ] && break
    sleep 0.2
done
kill $server
echo client_random $(echo $hello | tr -d ' ' | cut -c 13-76)
"#;

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// By how much a guest's clock is wrong, at the most. The host's clock is read before the question and after the
/// answer, and the guest's in between: so it is wrong by at least its distance from the nearer end, and by no more than
/// that from the farther one.
async fn clock_error(skep: &Skep, pid: u64) -> f64 {
    for _ in 0..QUESTIONS {
        let before = now();
        let inside: f64 = skep.output(pid, "date +%s.%N").await.parse().unwrap();
        let after = now();
        let at_least = (before - inside).max(inside - after);
        assert!(at_least < CLOCK_S, "the clock of {pid} is wrong by {at_least} s: {before} {inside} {after}");
        let at_most = (after - inside).max(inside - before);
        if at_most < CLOCK_S {
            return at_most;
        }
    }
    panic!(
        "a question to {pid} never took less than {CLOCK_S} s: this machine is too busy to compare clocks"
    );
}

/// All of them, by one call.
async fn clones(skep: &Skep) -> Vec<Value> {
    let answer = skep.post("/api/swarm/boot", &json!({"count": CLONES})).await;
    assert_eq!(answer.status, 201, "this test needs a machine that holds {CLONES} VMs: {answer:?}");
    answer.body["vms"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clones_of_one_call_share_nothing_that_must_be_unique() {
    let data_dir = temp_dir();
    let count = CLONES.to_string();
    let skep = Skep::start_on(data_dir, &["--max-vms", &count, "--memory-mb", MEMORY_MB]).await;
    let vms = clones(&skep).await;
    let pids: Vec<u64> = vms.iter().map(|vm| vm["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), CLONES);

    // One after the other: what is measured is the clock, not the queue.
    let mut worst: f64 = 0.0;
    for pid in &pids {
        worst = worst.max(clock_error(&skep, *pid).await);
    }
    eprintln!("{CLONES} clones; the worst clock is wrong by {:.0} ms at the most", worst * 1000.0);

    let answers = join_all(pids.iter().map(|pid| skep.output(*pid, UNIQUE))).await;
    for answer in &answers {
        let complete =
            answer.lines().filter(|line| line.split_once(' ').is_some_and(|(_, value)| value.len() > 6));
        assert_eq!(
            complete.count(),
            UNIQUE.lines().filter(|line| line.starts_with("echo")).count(),
            "{answer}"
        );
    }
    assert_eq!(shared(&answers), BTreeMap::new());

    // The control: the same comparison finds what the same VMs have in common.
    let same = join_all(pids.iter().map(|pid| skep.output(*pid, SHARED))).await;
    assert_eq!(shared(&same).keys().collect::<Vec<_>>(), ["release"]);

    let hellos = join_all(pids.iter().take(SPEAK_TLS).map(|pid| skep.output(*pid, CLIENT_RANDOM))).await;
    assert!(hellos.iter().all(|hello| hello.len() == "client_random ".len() + 64), "{hellos:?}");
    assert_eq!(shared(&hellos), BTreeMap::new());
}
