//! What a VM uses, as its owner reads it.

use std::net::SocketAddr;

use serde_json::{Value, json};

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
        ("/disk/traffic/written_bytes", 20 << 20),
        ("/disk/traffic/writes", 20),
        ("/disk/traffic/flushes", 1),
        ("/memory/held_mb", 15),
        ("/cpu/used_ms", 10),
        ("/network/received_bytes", 54),
        ("/network/sent_bytes", 54),
        ("/guest/processes", 1),
    ] {
        assert!(grown(pointer) >= least, "{pointer}: {before} then {after}");
    }
    for pointer in ["/disk/used_mb", "/disk/traffic/written_bytes", "/memory/held_mb", "/guest/processes"] {
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
    assert!(total(&skep, "skep_held_memory_bytes").await > 1e6);
}

/// The value of a metric of the server.
async fn total(skep: &Skep, name: &str) -> f64 {
    let text = skep.get("/metrics").await.ok(200);
    let line = text.as_str().unwrap().lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_disk_of_a_vm_did_is_counted_while_it_is_paused_and_after_it_has_ended() {
    const WRITTEN: f64 = 4e6;
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let (pid, path) = (vm["pid"].as_u64().unwrap(), format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap()));
    assert!(total(&skep, "skep_vm_disk_written_bytes_total").await < WRITTEN);
    skep.output(pid, "dd if=/dev/zero of=/written bs=1M count=4 conv=fsync; head -c 1M /dev/vdb").await;
    skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
    let paused = metrics(&skep, &vm).await;
    assert!(figure(&paused, "/disk/traffic/written_bytes") > 4_000_000, "{paused}");
    assert!(figure(&paused, "/disk/traffic/read_bytes") >= 1 << 20, "{paused}");
    assert!(figure(&paused, "/disk/traffic/reads") > 0, "{paused}");
    skep.post(&format!("{path}/resume"), &json!({})).await.ok(200);
    // No sample is taken between this write and the end of the VM.
    skep.output(pid, "dd if=/dev/zero of=/more bs=1M count=4 conv=fsync").await;
    skep.delete(&path).await.ok(200);
    let ended = total(&skep, "skep_vm_disk_written_bytes_total").await;
    assert!(ended > 2.0 * WRITTEN && ended < 10.0 * WRITTEN, "{ended}");
    assert!(total(&skep, "skep_vm_disk_read_bytes_total").await >= 1e6);
    for name in ["skep_vm_disk_reads_total", "skep_vm_disk_writes_total", "skep_vm_disk_flushes_total"] {
        assert!(total(&skep, name).await > 0.0, "{name}");
    }
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
