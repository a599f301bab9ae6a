//! The pool of parked VMs: they are handed out fresh, refilled, and give way to booted VMs.

mod thorough;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    harness::{Skep, eventually, eventually_within, kill, temp_dir},
    swarm::lifetime_s,
};

/// A restored VM that does not answer is given up after 60 s, and another one takes its place.
pub(crate) const FILL_TIMEOUT: Duration = Duration::from_secs(150);
/// Each step of a restore, for the log of a test that fails.
const LOG_LEVEL: [&str; 2] = ["--log-level", "info,skep_swarm=debug,skep_keeper=debug"];

async fn with_pool(size: u32, options: &[&str]) -> Skep {
    let data_dir = temp_dir();
    let size = size.to_string();
    let skep = Skep::start_on(data_dir, &[&["--pool-size", &size], &LOG_LEVEL[..], options].concat()).await;
    full(&skep).await;
    skep
}

async fn pool(skep: &Skep) -> (u64, u64) {
    let status = skep.get("/api/swarm/status").await.ok(200);
    let pool = &status["pool"]["base"];
    (pool["ready"].as_u64().unwrap_or(0), pool["target"].as_u64().unwrap_or(0))
}

pub(crate) async fn full(skep: &Skep) {
    eventually_within(FILL_TIMEOUT, "a full pool", async || {
        let (ready, target) = pool(skep).await;
        target > 0 && ready == target
    })
    .await;
}

fn sources(vms: &[Value]) -> Vec<&str> {
    vms.iter().map(|vm| vm["boot"]["source"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_vm_of_the_pool_is_as_new_as_a_cold_one() {
    let skep = with_pool(2, &[]).await;
    // The clock of a guest may be some milliseconds off, so its VM stands still for longer than that.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let request = json!({"count": 2, "env": {"WHO": "me"}, "metadata": {"a": 1}, "ttl_ms": 600_000});
    let (before, begun) = (Timestamp::now(), Instant::now());
    let answer = skep.post("/api/swarm/boot", &request).await.ok(201);
    let took = begun.elapsed().as_secs_f64();
    let vms = answer["vms"].as_array().unwrap();
    assert_eq!(sources(vms), ["pool", "pool"]);
    for vm in vms {
        let receipt = &vm["boot"];
        assert_eq!(receipt["reseeded"], true);
        for figure in ["restore_ms", "identity_ms", "ready_ms"] {
            assert!(receipt[figure].as_f64().unwrap() > 0.0, "{figure}: {receipt}");
        }
        // Its clock stood still as well.
        assert!(receipt["clock_step_ms"].as_f64().unwrap() > 0.0, "{receipt}");
        // Its times begin with the request.
        let started_at: Timestamp = vm["started_at"].as_str().unwrap().parse().unwrap();
        assert!(started_at.as_millisecond() >= before.as_millisecond(), "{before}: {vm}");
        assert_eq!(lifetime_s(vm), 600);
        assert!(vm["uptime"].as_f64().unwrap() <= took, "{vm}");
    }
    let facts = |pid: u64| {
        let skep = &skep;
        async move {
            let command = "echo $WHO; hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; \
                           head -c 16 /dev/urandom | od -An -tx1; ls -A /root /tmp; date +%s";
            skep.output(pid, command).await
        }
    };
    let outputs = join_all(vms.iter().map(|vm| facts(vm["pid"].as_u64().unwrap()))).await;
    let lines: Vec<Vec<&str>> = outputs.iter().map(|output| output.lines().collect()).collect();
    for lines in &lines {
        assert_eq!(lines[0], "me");
        let clock: i64 = lines.last().unwrap().parse().unwrap();
        assert!((jiff::Timestamp::now().as_second() - clock).abs() < 60, "{lines:?}");
    }
    // Host name, machine id, boot id and randomness.
    for (one, other) in lines[0].iter().zip(&lines[1]).skip(1).take(4) {
        assert_ne!(one, other, "{outputs:?}");
    }
    full(&skep).await;
}

#[tokio::test]
async fn a_burst_beyond_the_pool_is_booted_cold() {
    let skep = with_pool(1, &[]).await;
    let vms = skep.boot(3).await;
    let mut sources = sources(&vms);
    sources.sort_unstable();
    assert_eq!(sources, ["cold", "cold", "pool"]);
    let names = join_all(vms.iter().map(|vm| skep.output(vm["pid"].as_u64().unwrap(), "hostname"))).await;
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3, "{names:?}");
}

#[tokio::test]
async fn parked_vms_give_way_to_boots_and_survive_a_cleanup() {
    let skep = with_pool(1, &["--max-vms", "2"]).await;
    let used = async || skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].clone();
    assert_eq!(used().await, 0, "nobody uses what is parked");
    skep.boot(2).await;
    assert_eq!(pool(&skep).await.0, 0);
    skep.post("/api/swarm/boot", &json!({})).await.refused(503, "no_capacity");
    assert_eq!(skep.post("/api/swarm/cleanup", &json!({})).await.ok(200)["terminated"], 2);
    full(&skep).await;
    assert_eq!(skep.post("/api/swarm/cleanup", &json!({})).await.ok(200)["terminated"], 0);
    assert_eq!(pool(&skep).await.0, 1);
}

#[tokio::test]
async fn a_parked_vm_that_dies_is_replaced() {
    let skep = with_pool(1, &[]).await;
    let [pid] = skep.vmms()[..] else { panic!("a parked VM is a process") };
    kill(pid);
    eventually("another VMM", async || skep.vmms().iter().any(|other| *other != pid)).await;
    full(&skep).await;
    let vms = skep.boot(1).await;
    assert_eq!(sources(&vms), ["pool"]);
}

#[tokio::test]
async fn a_server_keeps_some_vms_ready_unasked() {
    let data_dir = temp_dir();
    let skep = Skep::start_as(data_dir, |command| _ = command.env_remove("SKEP_POOL_SIZE")).await;
    eventually_within(FILL_TIMEOUT, "a VM of the pool", async || pool(&skep).await.0 > 0).await;
    assert_eq!(sources(&skep.boot(1).await), ["pool"]);
}
