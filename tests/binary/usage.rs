//! What a VM uses, as its owner reads it.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};

use crate::harness::{Skep, Tenant, command, connect_in_namespace, eventually, output_of, printed};

/// Holds 20 MiB of memory and 20 MiB of disk until it is killed.
const HOLD: &str = "dd if=/dev/zero of=/held bs=1M count=20 conv=fsync 2>/dev/null
    python3 -c 'import time; held = b\"x\" * (20 << 20); open(\"/held-memory\", \"w\").close(); time.sleep(600)' &
    while [ ! -e /held-memory ]; do sleep 0.05; done";

async fn metrics(skep: &Skep, vm: &Value) -> Value {
    skep.get(&format!("/api/swarm/vm/{}/metrics", vm["id"].as_str().unwrap())).await.ok(200)
}

/// The metrics of a running VM with all figures. A guest or a VMM that does not answer in time is reported without its own.
pub(crate) async fn complete_metrics(skep: &Skep, vm: &Value) -> Value {
    let mut found = Value::Null;
    eventually("all figures of a VM", async || {
        found = metrics(skep, vm).await;
        ["/guest/processes", "/disk/traffic/written_bytes"]
            .iter()
            .all(|pointer| found.pointer(pointer).is_some())
    })
    .await;
    found
}

pub(crate) fn figure(metrics: &Value, pointer: &str) -> u64 {
    metrics.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer}: {metrics}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_of_a_vm_follow_what_it_does() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let (vm, idle) = (&vms[0], &vms[1]);
    let pid = vm["pid"].as_u64().unwrap();
    let (before, idle_before) = (complete_metrics(&skep, vm).await, complete_metrics(&skep, idle).await);

    skep.output(pid, HOLD).await;
    let address = SocketAddr::new(vm["ip"].as_str().unwrap().parse().unwrap(), 9);
    connect_in_namespace(&skep.namespace(), address).await.unwrap_err();

    let idle_after = complete_metrics(&skep, idle).await;
    let mut after = Value::Null;
    let written = |metrics: &Value| figure(metrics, "/disk/traffic/written_bytes");
    // A VMM that does not answer in time is reported with its figures from before.
    eventually("what was written", async || {
        after = complete_metrics(&skep, vm).await;
        written(&after) >= written(&before) + (20 << 20)
    })
    .await;
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
    // The guest and the overhead of its VMM, as in the capacity of the machine.
    assert!(figure(&after, "/memory/promised_mb") > figure(vm, "/memory_mb"), "{after}");
    assert_eq!(after["memory"]["promised_mb"], after["memory"]["limit_mb"]);
    assert_eq!(after["cpu"]["vcpus"], vm["vcpus"]);
    assert!(figure(&after, "/memory/held_mb") < figure(&after, "/memory/limit_mb"), "{after}");
    assert!(figure(&after, "/disk/used_mb") < figure(&after, "/disk/size_mb"), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_vm_uses_is_read_by_its_owner_and_by_the_operator() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    the_operator_sees_the_machine_and_the_receipt_of_its_boot(&skep, &vm).await;
    the_command_shows_the_machine_to_the_operator(&skep).await;
    its_record_has_a_sample(&skep, &vm).await;
    the_command_shows_its_memory_and_processor_time(&skep).await;
    other_accounts_do_not_find_its_metrics(&skep, &vm).await;
    only_its_programs_count_as_processes(&skep, &vm).await;
}

async fn the_operator_sees_the_machine_and_the_receipt_of_its_boot(skep: &Skep, vm: &Value) {
    let system = skep.get("/api/system").await.ok(200);
    assert_eq!(system["swarm"]["vms"], json!(1), "{system}");
    assert_eq!(system["versions"]["engine"], system["swarm"]["engine"]["name"]);
    assert_eq!(
        (&system["swarm"]["damaged_templates"], &system["swarm_unavailable"]),
        (&json!([]), &Value::Null)
    );
    assert!(
        figure(&system, "/disk/free_bytes") > 0 && figure(&system, "/memory/available_mb") > 0,
        "{system}"
    );
    let request =
        skep.request(reqwest::Method::GET, "/api/events?types=vm.booted&since=2020-01-01T00:00:00Z");
    let mut stream = request.send().await.unwrap();
    let mut text = String::new();
    while !text.contains("vm.booted") || !text.ends_with("\n\n") {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let event: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&event["vm"], &event["boot"]), (&vm["id"], &vm["boot"]), "{event}");
}

async fn the_command_shows_the_machine_to_the_operator(skep: &Skep) {
    let system = skep.get("/api/system").await.ok(200);
    let text = |pointer: &str| system.pointer(pointer).unwrap().as_str().unwrap();
    let shown = printed(&output_of(&mut command(skep, &["system"])));
    for (name, value) in [
        ("skep", text("/versions/skep")),
        ("kernel", text("/versions/kernel")),
        ("engine", text("/versions/engine")),
        ("VMs", "1, which hold "),
    ] {
        let line = format!("{name:<8} {value}");
        assert!(shown.lines().any(|found| found.starts_with(&line)), "{line}: {shown}");
    }
    let total = format!(" of {} MiB available", figure(&system, "/memory/total_mb"));
    let size = format!(" of {} GiB free", figure(&system, "/disk/size_bytes") >> 30);
    for (name, end) in [("memory ", total), ("disk ", size)] {
        assert!(
            shown.lines().any(|found| found.starts_with(name) && found.ends_with(&end)),
            "{end}: {shown}"
        );
    }
    let agent = skep.post("/api/keys", &json!({"name": "agent", "role": "agent"})).await.ok(201);
    let mut by_agent = command(skep, &["system"]);
    let refused = output_of(by_agent.env("SKEP_API_KEY", agent["key"].as_str().unwrap()));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
}

async fn its_record_has_a_sample(skep: &Skep, vm: &Value) {
    let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
    eventually("a sample", async || skep.get(&path).await.ok(200)["usage"].is_object()).await;
    let usage = skep.get("/api/swarm/status").await.ok(200)["vms"][0]["usage"].clone();
    assert!(figure(&usage, "/memory_mb") > 0 && usage["cpu_ms"].is_u64(), "{usage}");
    assert_eq!(skep.get("/api/vms").await.ok(200)["vms"][0]["usage"], Value::Null);
    assert!(total(skep, "skep_held_memory_bytes").await > 1e6);
}

async fn the_command_shows_its_memory_and_processor_time(skep: &Skep) {
    // The command prints seconds with one decimal place.
    const ROUNDING: Duration = Duration::from_millis(100);
    let cpu = async || {
        let status = skep.get("/api/swarm/status").await.ok(200);
        Duration::from_millis(figure(&status, "/vms/0/usage/cpu_ms"))
    };
    let before = cpu().await;
    let listed = printed(&output_of(&mut command(skep, &["ps"])));
    let after = cpu().await;
    let words: Vec<&str> = listed.lines().last().unwrap().split_whitespace().collect();
    let [_pid, _id, _name, "running", held, "/", "128", "MiB", used, "s", ..] = words[..] else {
        panic!("{listed}")
    };
    assert!(held.parse::<u64>().unwrap() > 0, "{listed}");
    let used = Duration::from_secs_f64(used.parse().unwrap());
    assert!(used + ROUNDING >= before && used <= after + ROUNDING, "{before:?} to {after:?}: {listed}");
}

async fn other_accounts_do_not_find_its_metrics(skep: &Skep, vm: &Value) {
    let path = format!("/api/swarm/vm/{}/metrics", vm["id"].as_str().unwrap());
    skep.tenant("other").await.get(&path).await.refused(404, "unknown_vm");
    // The control: the owner reads them.
    skep.get(&path).await.ok(200);
}

async fn only_its_programs_count_as_processes(skep: &Skep, vm: &Value) {
    let pid = vm["pid"].as_u64().unwrap();
    skep.output(pid, "true").await;
    assert_eq!(figure(&complete_metrics(skep, vm).await, "/guest/processes"), 0);
    skep.output(pid, "for n in 1 2 3; do sleep 600 </dev/null >/dev/null 2>&1 & done").await;
    assert_eq!(figure(&complete_metrics(skep, vm).await, "/guest/processes"), 3);
    skep.output(pid, "pkill sleep; while pgrep sleep; do sleep 0.05; done").await;
    assert_eq!(figure(&complete_metrics(skep, vm).await, "/guest/processes"), 0);
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
    // A guest does not flush the disk at each fsync(2) of a file system without a journal, but at each sync(2).
    skep.output(pid, "dd if=/dev/zero of=/written bs=1M count=4; sync; head -c 1M /dev/vdb").await;
    skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
    let mut paused = Value::Null;
    // A VMM that does not answer in time is reported with its sample from before.
    eventually("what was written", async || {
        paused = metrics(&skep, &vm).await;
        figure(&paused, "/disk/traffic/written_bytes") > 4_000_000
    })
    .await;
    assert!(figure(&paused, "/disk/traffic/read_bytes") >= 1 << 20, "{paused}");
    assert!(figure(&paused, "/disk/traffic/reads") > 0, "{paused}");
    skep.post(&format!("{path}/resume"), &json!({})).await.ok(200);
    skep.delete(&path).await.ok(200);
    let written = async || total(&skep, "skep_vm_disk_written_bytes_total").await;
    let ended = written().await;
    assert!(ended > WRITTEN && ended < 5.0 * WRITTEN, "{ended}");
    // A VMM that does not answer in time is ended without a last sample: then another VM is tried.
    eventually("what was written before an end", async || {
        let before = written().await;
        let other = skep.boot_one().await;
        // No sample is taken between this write and the end of the VM.
        skep.output(other, "dd if=/dev/zero of=/more bs=1M count=4 conv=fsync").await;
        skep.delete(&format!("/api/swarm/vm/{other}")).await.ok(200);
        let grown = written().await - before;
        assert!(grown < 5.0 * WRITTEN, "{grown}");
        grown > WRITTEN
    })
    .await;
    assert!(total(&skep, "skep_vm_disk_read_bytes_total").await >= 1e6);
    for name in ["skep_vm_disk_reads_total", "skep_vm_disk_writes_total", "skep_vm_disk_flushes_total"] {
        assert!(total(&skep, name).await > 0.0, "{name}");
    }
}

#[tokio::test]
async fn samples_have_the_vms_of_the_account_alone_and_can_be_followed() {
    let skep = Skep::start().await;
    let (owner, stranger) = (skep.tenant("acme").await, skep.tenant("other").await);
    let vm = owner.boot().await;
    let latest = async |by: &Tenant<'_>| {
        let found = by.get("/api/swarm/metrics").await.ok(200);
        assert_eq!((&found["interval_ms"], &found["truncated"]), (&json!(2000), &json!(false)));
        found["samples"].as_array().unwrap().last().cloned().unwrap_or_default()
    };
    eventually("a sample with a share of processors", async || {
        latest(&owner).await.pointer("/vms/0/cpu_percent").is_some_and(Value::is_number)
    })
    .await;
    let sample = latest(&owner).await;
    assert_eq!((&sample["vms"][0]["id"], &sample["vms"][0]["pid"]), (&vm["id"], &vm["pid"]), "{sample}");
    assert_eq!((&sample["totals"]["vms"], sample["vms"].as_array().unwrap().len()), (&json!(1), 1));
    assert_eq!(sample["totals"]["memory_mb"], sample["vms"][0]["memory_mb"]);
    assert!(figure(&sample, "/totals/memory_mb") > 0, "{sample}");
    let theirs = latest(&stranger).await;
    assert_eq!((&theirs["vms"], &theirs["totals"]["vms"]), (&json!([]), &json!(0)), "{theirs}");

    let since = sample["at"].as_str().unwrap();
    let later = owner.get(&format!("/api/swarm/metrics?since={since}")).await.ok(200);
    let times = later["samples"].as_array().unwrap().iter().map(|one| one["at"].as_str().unwrap());
    assert!(times.into_iter().all(|at| at > since), "{later}");
    let request = owner.request(reqwest::Method::GET, "/api/swarm/metrics?follow=true");
    let mut stream = request.header("last-event-id", since).send().await.unwrap();
    let mut text = String::new();
    while text.matches("\n\n").count() < 2 {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert!(ids.len() >= 2 && ids[0] > since && ids[1] > ids[0], "{text}");
    assert!(text.contains("event: sample\n") && text.contains(vm["id"].as_str().unwrap()), "{text}");
}
