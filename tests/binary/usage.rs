//! What a VM uses, as its owner reads it.

use std::net::SocketAddr;

use serde_json::Value;

use crate::harness::{Skep, connect_in_namespace, eventually};

/// Holds 20 MiB of memory and 20 MiB of disk until it is killed.
const HOLD: &str = "dd if=/dev/zero of=/held bs=1M count=20 conv=fsync 2>/dev/null
    python3 -c 'import time; held = b\"x\" * (20 << 20); open(\"/held-memory\", \"w\").close(); time.sleep(600)' &
    while [ ! -e /held-memory ]; do sleep 0.05; done";

async fn metrics(skep: &Skep, vm: &Value) -> Value {
    skep.get(&format!("/api/swarm/vm/{}/metrics", vm["id"].as_str().unwrap())).await.ok(200)
}

fn figure(metrics: &Value, pointer: &str) -> u64 {
    metrics.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer}: {metrics}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_of_a_vm_follow_what_it_does() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let (vm, idle) = (&vms[0], &vms[1]);
    let pid = vm["pid"].as_u64().unwrap();
    let (before, idle_before) = (metrics(&skep, vm).await, metrics(&skep, idle).await);

    skep.output(pid, HOLD).await;
    let address = SocketAddr::new(vm["ip"].as_str().unwrap().parse().unwrap(), 9);
    connect_in_namespace(&skep.namespace(), address).await.unwrap_err();

    let (after, idle_after) = (metrics(&skep, vm).await, metrics(&skep, idle).await);
    let grown = |pointer| figure(&after, pointer).saturating_sub(figure(&before, pointer));
    let idle_grown = |pointer| figure(&idle_after, pointer).saturating_sub(figure(&idle_before, pointer));
    for (pointer, least) in [
        ("/disk/used_mb", 20),
        ("/memory/held_mb", 15),
        ("/cpu/used_ms", 10),
        ("/network/received_bytes", 54),
        ("/network/sent_bytes", 54),
        ("/guest/processes", 1),
    ] {
        assert!(grown(pointer) >= least, "{pointer}: {before} then {after}");
    }
    for pointer in ["/disk/used_mb", "/memory/held_mb", "/guest/processes"] {
        assert!(
            idle_grown(pointer) < grown(pointer),
            "{pointer} of the other VM: {idle_before} then {idle_after}"
        );
    }
    let guest_free = |metrics| figure(metrics, "/guest/memory_available_mb");
    assert!(guest_free(&before) >= guest_free(&after) + 15, "{before} then {after}");
    assert_eq!(after["memory"]["promised_mb"], vm["memory_mb"]);
    assert_eq!(after["cpu"]["vcpus"], vm["vcpus"]);
    assert!(figure(&after, "/memory/held_mb") < figure(&after, "/memory/limit_mb"), "{after}");
    assert!(figure(&after, "/disk/used_mb") < figure(&after, "/disk/size_mb"), "{after}");
}

#[tokio::test]
async fn records_have_a_sample_of_the_usage_and_lists_of_the_store_have_none() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
    eventually("a sample", async || skep.get(&path).await.ok(200)["usage"].is_object()).await;
    let usage = skep.get("/api/swarm/status").await.ok(200)["vms"][0]["usage"].clone();
    assert!(figure(&usage, "/memory_mb") > 0 && usage["cpu_ms"].is_u64(), "{usage}");
    assert_eq!(skep.get("/api/vms").await.ok(200)["vms"][0]["usage"], Value::Null);
    let text = skep.get("/metrics").await.ok(200);
    let held = text.as_str().unwrap().lines().find_map(|line| line.strip_prefix("skep_held_memory_bytes "));
    assert!(held.unwrap().parse::<f64>().unwrap() > 1e6, "{held:?}");
}

#[tokio::test]
async fn the_metrics_of_other_accounts_are_not_found() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let path = format!("/api/swarm/vm/{}/metrics", vm["id"].as_str().unwrap());
    skep.tenant("other").await.get(&path).await.refused(404, "unknown_vm");
    // The control: the owner reads them.
    skep.get(&path).await.ok(200);
}
