//! A template of another size: its build, its VMs, and its end.

mod thorough;

use std::{
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    harness::{Skep, command, eventually, eventually_within, temp_dir},
    pool::FILL_TIMEOUT,
};

/// A step of a build, such as the boot of the guest, on a machine under load.
pub(crate) const STEP_OF_BUILD: Duration = Duration::from_secs(180);

/// The size of `base` in tests, and that of the template.
const BASE_DISK_MB: u64 = 2048;
const MEMORY_MB: u64 = 256;
const DISK_MB: u64 = 3072;

fn files_of(skep: &Skep, id: &str) -> PathBuf {
    skep.data_dir.path().join("templates").join(id)
}

/// Runs a verb, and returns its exit code, output and errors.
fn run(skep: &Skep, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = command(skep, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Creates the template by the command, which waits until it is ready.
fn create(skep: &Skep, name: &str, vcpus: &str) -> Value {
    let arguments =
        ["template", "create", name, "--memory", "256M", "--vcpus", vcpus, "--disk", "3G", "--json"];
    let (code, out, errors) = run(skep, &arguments);
    assert_eq!(code, Some(0), "{errors}");
    serde_json::from_str(&out).unwrap()
}

/// The VM has the size of its template.
async fn has_its_size(skep: &Skep, vm: &Value, vcpus: &str) {
    assert_eq!((&vm["template"], &vm["memory_mb"]), (&json!("big"), &json!(MEMORY_MB)));
    let pid = vm["pid"].as_u64().unwrap();
    assert_eq!(skep.output(pid, "nproc").await, vcpus);
    let total = skep.output(pid, "awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo").await;
    assert!((180..MEMORY_MB).contains(&total.parse().unwrap()), "{total} MiB");
    let disk = skep.output(pid, "df --output=size -BM / | tail -n 1").await;
    let disk: u64 = disk.trim().trim_end_matches('M').parse().unwrap();
    assert!((BASE_DISK_MB + 512..=DISK_MB).contains(&disk), "{disk} MiB");
    skep.output(pid, "dd if=/dev/urandom of=/root/file bs=1M count=64 && sync && rm /root/file").await;
}

fn kinds(skep: &Skep, count: &str) -> Vec<String> {
    let arguments = ["events", "--from-start", "--types", "template.*", "-n", count, "--json"];
    let (_, out, _) = run(skep, &arguments);
    let kind = |line: &str| serde_json::from_str::<Value>(line).unwrap()["type"].as_str().unwrap().to_owned();
    out.lines().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_of_another_size_is_built_booted_and_deleted() {
    let skep = Skep::start_on(temp_dir(), &["--pool-size", "4"]).await;
    let vcpus = available_parallelism().unwrap().get().min(2).to_string();
    let big = create(&skep, "big", &vcpus);
    let id = big["id"].as_str().unwrap();
    assert_eq!(
        (&big["state"], &big["memory_mb"], &big["disk_mb"]),
        (&json!("ready"), &json!(256), &json!(3072))
    );
    assert!(big["own_bytes"].as_u64().unwrap() > 0 && files_of(&skep, id).is_dir(), "{big}");
    let too_small = json!({"name": "small", "from": "big", "disk_mb": BASE_DISK_MB});
    let message = skep.post("/api/templates", &too_small).await;
    let message = message.refused(400, "invalid_value");
    assert!(message.contains("2048") && message.contains("3072"), "{message}");
    let too_large = json!({"name": "huge", "from": "base", "memory_mb": 1_000_000_000_u64});
    skep.post("/api/templates", &too_large).await.refused(400, "invalid_value");
    skep.post("/api/templates", &json!({"name": "big", "from": "base"})).await.refused(409, "name_taken");

    let booted = skep.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201);
    let vm = &booted["vms"][0];
    has_its_size(&skep, vm, &vcpus).await;
    let used = skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].as_u64().unwrap();
    assert!((MEMORY_MB + 1..=MEMORY_MB + 128).contains(&used), "{used} MiB");
    let refused = skep.delete("/api/templates/big").await;
    let message = refused.refused(409, "template_in_use");
    assert!(message.contains(vm["id"].as_str().unwrap()), "{message}");
    // VMs of the pool are parked beside those of `base`, and do not keep the template.
    eventually_within(FILL_TIMEOUT, "a parked VM of the template", async || {
        skep.get("/api/swarm/status").await.ok(200)["pool"]["big"]["ready"].as_u64() > Some(0)
    })
    .await;
    skep.delete(&format!("/api/swarm/vm/{}", vm["pid"])).await.ok(200);
    let (code, out, errors) = run(&skep, &["template", "rm", "big"]);
    assert_eq!((code, out.as_str()), (Some(0), "big is deleted\n"), "{errors}");
    eventually("the end of the files", async || !Path::exists(&files_of(&skep, id))).await;
    skep.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(404, "unknown_template");
    assert_eq!(kinds(&skep, "3"), ["template.building", "template.ready", "template.deleted"]);
    assert_eq!(skep.get("/api/vms?state=ended").await.ok(200)["vms"][0]["template"], "big");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_outlives_its_server_and_belongs_to_its_account() {
    let skep = Skep::start().await;
    let acme = skep.tenant("acme").await;
    acme.change(&json!({"max_memory_mb": 300})).await;
    let order = json!({"name": "big", "from": "base", "memory_mb": 301});
    let message = acme.post("/api/templates", &order).await;
    let message = message.refused(409, "quota_exceeded");
    assert!(message.contains("301") && message.contains("300"), "{message}");
    let order = json!({"name": "big", "from": "base", "memory_mb": MEMORY_MB, "disk_mb": DISK_MB});
    let begun = acme.post("/api/templates", &order).await.ok(202);
    assert_eq!((&begun["state"], &begun["source"]), (&json!("building"), &json!("setup")));
    acme.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(409, "template_not_ready");
    let mut seen = begun.clone();
    while seen["state"] == "building" {
        let progress = seen["progress"].clone();
        eventually_within(STEP_OF_BUILD, "the next step of the build", async || {
            seen = acme.get("/api/templates/big").await.ok(200);
            seen["state"] != "building" || seen["progress"] != progress
        })
        .await;
    }
    assert_eq!(seen["state"], "ready", "{seen}");
    for path in ["/api/templates/big", &format!("/api/templates/{}", begun["id"].as_str().unwrap())] {
        skep.get(path).await.refused(404, "unknown_template");
    }
    skep.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(404, "unknown_template");
    // The quota counts the memory of the template.
    acme.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201);
    let message = acme.post("/api/swarm/boot", &json!({})).await;
    let message = message.refused(409, "quota_exceeded");
    assert!(message.contains("128 MiB") && message.contains("44"), "{message}");
    let key = acme.key.clone();
    let restarted = skep.stop_and_leave_vms().start().await;
    let get = |path: &str| crate::harness::send(restarted.bare(reqwest::Method::GET, path).bearer_auth(&key));
    let seen = get("/api/templates/big").await.ok(200);
    assert_eq!((&seen["state"], &seen["vms"]), (&json!("ready"), &json!(1)));
    assert_eq!(get("/api/swarm/status").await.ok(200)["vms"][0]["template"], "big");
}
