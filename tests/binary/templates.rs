//! A template of another size: its build, its VMs, and its end.

mod thorough;

use std::{
    fs,
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    copies::{path_of, pid_of},
    harness::{Skep, answer, command, eventually, eventually_within, images::flip_a_bit, send},
    pool::FILL_TIMEOUT,
};

/// A step of a build, such as the boot of the guest, on a machine under load.
pub(crate) const STEP_OF_BUILD: Duration = Duration::from_secs(180);

/// A change of an input of `base`, which is the parent of all other templates. It is baked again at the next start.
pub(crate) const OTHER_BASE: [&str; 2] = ["--base-disk-mb", "2304"];

/// The size of `base` in tests, and that of the template.
const BASE_DISK_MB: u64 = 2048;
const MEMORY_MB: u64 = 256;
const DISK_MB: u64 = 3072;

fn files_of(skep: &Skep, id: &str) -> PathBuf {
    skep.data_dir.path().join("templates").join(id)
}

/// Runs a verb, and returns its exit code, output and errors.
pub(crate) fn run(skep: &Skep, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = command(skep, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The VM has the size of its template.
async fn has_its_size(skep: &Skep, vm: &Value, vcpus: &str) {
    assert_eq!((&vm["template"], &vm["memory_mb"]), (&json!("big"), &json!(MEMORY_MB)));
    let pid = vm["pid"].as_u64().unwrap();
    let size =
        "nproc; awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo; df --output=size -BM / | tail -n 1";
    let size = skep.output(pid, size).await;
    let [processors, total, disk] = size.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(processors, vcpus);
    assert!((180..MEMORY_MB).contains(&total.parse().unwrap()), "{total} MiB");
    let disk: u64 = disk.trim_end_matches('M').parse().unwrap();
    assert!((BASE_DISK_MB + 512..=DISK_MB).contains(&disk), "{disk} MiB");
    skep.output(pid, "dd if=/dev/urandom of=/root/file bs=1M count=16 && sync && rm /root/file").await;
}

/// The first events of templates; waits until there are as many.
pub(crate) fn events(skep: &Skep, count: &str) -> Vec<Value> {
    let arguments = ["events", "--from-start", "--types", "template.*", "-n", count, "--json"];
    let (_, out, _) = run(skep, &arguments);
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of the template `big`. Two events of the snapshot `kept` precede them: `template.building` and `template.ready`.
fn events_of_big(skep: &Skep, count: usize) -> Vec<Value> {
    events(skep, &(count + 2).to_string()).split_off(2)
}

/// Compares the columns of the list up to the time of the last use, which varies.
fn is_listed_by_the_command(skep: &Skep, vcpus: &str) {
    let (_, listed, _) = run(skep, &["template", "list"]);
    let lines = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let expected = format!("big ready 256 MiB {vcpus} 3 GiB 1 ");
    assert!(lines.into_iter().any(|line| line.starts_with(&expected)), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_of_another_size_is_built_also_after_an_update_booted_and_deleted() {
    let skep = Skep::start().await;
    let vcpus = available_parallelism().unwrap().get().min(2).to_string();
    let sleeper = on_disk_and_in_a_snapshot(&skep).await;
    let me = skep.get("/api/whoami").await.ok(200);
    let account = format!("/api/accounts/{}", me["account"]["id"].as_str().unwrap());
    is_refused_beyond_machine_and_quota(&skep, &account).await;
    let big = builds(&skep, &vcpus).await;
    let id = big["id"].as_str().unwrap().to_owned();
    belongs_to_its_account(&skep, &id).await;
    let vm = counts_for_the_quota(&skep).await;

    // The next server has the template and its VM.
    let skep = skep.stop_and_leave_vms().start().await;
    let seen = skep.get("/api/templates/big").await.ok(200);
    assert_eq!((&seen["state"], &seen["vms"]), (&json!("ready"), &json!(1)));
    is_listed_by_the_command(&skep, &vcpus);
    assert_eq!(skep.get("/api/swarm/status").await.ok(200)["vms"][0]["template"], "big");
    let skep = is_built_again_after_an_update(skep, &vm).await;
    skep.delete(&path_of(&vm)).await.ok(200);
    limit_memory(&skep, &account, &Value::Null).await;
    is_booted_with_its_size(&skep, &vcpus).await;
    let skep = is_refused_where_it_is_damaged(skep, &id).await;
    is_deleted(&skep, &id).await;
    are_valid_after_an_update(&skep, &sleeper).await;
}

/// Boots a VM of `base`, stores it as the snapshot `kept`, and pauses it to disk.
async fn on_disk_and_in_a_snapshot(skep: &Skep) -> Value {
    let vm = skep.boot(1).await.remove(0);
    skep.output(pid_of(&vm), "echo here > /dev/shm/word; echo here > /root/word").await;
    skep.post(&format!("{}/snapshot", path_of(&vm)), &json!({"name": "kept"})).await.ok(201);
    skep.post(&format!("{}/pause", path_of(&vm)), &json!({"to": "disk"})).await.ok(200);
    vm
}

/// The VM on disk and the snapshot have their own copies of the files of the former `base`.
async fn are_valid_after_an_update(skep: &Skep, sleeper: &Value) {
    skep.post(&format!("{}/resume", path_of(sleeper)), &json!({})).await.ok(200);
    let resumed = skep.get(&path_of(sleeper)).await.ok(200);
    let booted = skep.post("/api/swarm/boot", &json!({"template": "kept"})).await.ok(201);
    for vm in [&resumed, &booted["vms"][0]] {
        assert_eq!(skep.output(pid_of(vm), "cat /dev/shm/word /root/word").await, "here\nhere", "{vm}");
    }
}

/// A change of the account of the server's administrator, whose template it is.
async fn limit_memory(skep: &Skep, account: &str, limit: &Value) {
    let change = json!({"max_memory_mb": limit});
    send(skep.request(Method::PATCH, account).json(&change)).await.ok(200);
}

async fn is_refused_beyond_machine_and_quota(skep: &Skep, account: &str) {
    let too_large = json!({"name": "huge", "from": "base", "memory_mb": 1_000_000_000_u64});
    skep.post("/api/templates", &too_large).await.refused(400, "invalid_value");
    limit_memory(skep, account, &json!(300)).await;
    let order = json!({"name": "big", "from": "base", "memory_mb": 301});
    let message = skep.post("/api/templates", &order).await;
    let message = message.refused(409, "quota_exceeded");
    assert!(message.contains("301") && message.contains("300"), "{message}");
}

/// Builds it by the command, which waits until it is ready. Until then it is listed, and not booted.
async fn builds(skep: &Skep, vcpus: &str) -> Value {
    let arguments =
        ["template", "create", "big", "--memory", "256M", "--vcpus", vcpus, "--disk", "3G", "--json"];
    let mut create = command(skep, &arguments);
    let create = tokio::task::spawn_blocking(move || create.output().unwrap());
    let mut seen = Value::Null;
    eventually("the record of the template", async || {
        let answer = skep.get("/api/templates/big").await;
        let is_there = answer.status == 200;
        seen = answer.body;
        is_there
    })
    .await;
    assert_eq!((&seen["state"], &seen["source"]), (&json!("building"), &json!("setup")));
    skep.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(409, "template_not_ready");
    skep.post("/api/templates", &json!({"name": "big", "from": "base"})).await.refused(409, "name_taken");
    eventually_within(STEP_OF_BUILD, "the progress of the build", async || {
        let seen = skep.get("/api/templates/big").await.ok(200);
        seen["progress"].as_str().is_some_and(|step| step.contains("boot of the guest"))
    })
    .await;
    let seen = becomes_ready(skep, "big").await;
    let big = answer(&create.await.unwrap());
    assert_eq!(
        (&big["id"], &big["state"], &big["memory_mb"], &big["disk_mb"]),
        (&seen["id"], &json!("ready"), &json!(256), &json!(3072))
    );
    assert!(big["own_bytes"].as_u64().unwrap() > 0, "{big}");
    assert!(files_of(skep, big["id"].as_str().unwrap()).is_dir(), "{big}");
    let too_small = json!({"name": "small", "from": "big", "disk_mb": BASE_DISK_MB});
    let message = skep.post("/api/templates", &too_small).await;
    let message = message.refused(400, "invalid_value");
    assert!(message.contains("2048") && message.contains("3072"), "{message}");
    big
}

async fn belongs_to_its_account(skep: &Skep, id: &str) {
    let acme = skep.tenant("acme").await;
    for path in ["/api/templates/big", &format!("/api/templates/{id}")] {
        acme.get(path).await.refused(404, "unknown_template");
    }
    acme.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(404, "unknown_template");
}

/// The quota counts the memory of the template. Returns the VM that it allows.
async fn counts_for_the_quota(skep: &Skep) -> Value {
    let booted = skep.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201);
    let message = skep.post("/api/swarm/boot", &json!({})).await;
    let message = message.refused(409, "quota_exceeded");
    assert!(message.contains("128 MiB") && message.contains("44"), "{message}");
    booted["vms"][0].clone()
}

/// Returns a server after an update, which has a pool.
async fn is_built_again_after_an_update(skep: Skep, vm: &Value) -> Skep {
    let update = [&OTHER_BASE[..], &["--pool-size", "4"]].concat();
    let skep = skep.stop_and_leave_vms().start_with(&update).await;
    // Until the server has compared it with its inputs, the record says what the last server knew.
    assert_eq!(events_of_big(&skep, 3)[2]["type"], "template.outdated");
    becomes_ready(&skep, "big").await;
    let events = events_of_big(&skep, 4);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["template.building", "template.ready", "template.outdated", "template.ready"]);
    let reason = events[2]["reason"].as_str().unwrap();
    assert_eq!(reason, "built from an earlier state of its parent");
    // Its VM keeps the files of before.
    assert_eq!(skep.output(pid_of(vm), "echo lives").await, "lives");
    skep
}

/// Waits until a template is built. Each change of its record may take as long as anything that tests wait for.
pub(crate) async fn becomes_ready(skep: &Skep, name: &str) -> Value {
    let path = format!("/api/templates/{name}");
    let mut seen = skep.get(&path).await.ok(200);
    while seen["state"] != "ready" {
        assert_ne!(seen["state"], "failed", "{seen}");
        let before = seen.clone();
        eventually_within(STEP_OF_BUILD, "the next step of the build", async || {
            seen = skep.get(&path).await.ok(200);
            seen != before
        })
        .await;
    }
    seen
}

async fn is_booted_with_its_size(skep: &Skep, vcpus: &str) {
    let booted = skep.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201);
    let vm = &booted["vms"][0];
    has_its_size(skep, vm, vcpus).await;
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
    skep.delete(&path_of(vm)).await.ok(200);
}

/// Returns a server that has found the damage: a loaded template is in sealed memory, so only the next server meets it. Its repair is
/// the subject of a thorough test.
async fn is_refused_where_it_is_damaged(skep: Skep, id: &str) -> Skep {
    let stopped = skep.stop_and_leave_vms();
    flip_a_bit(&newest_folder_of(&stopped.path().join("templates").join(id)).join("layer.ext4"));
    let skep = stopped.start_with(&OTHER_BASE).await;
    let refused = skep.post("/api/swarm/boot", &json!({"template": "big"})).await;
    let message = refused.refused(422, "template_damaged");
    assert!(message.contains("layer.ext4"), "{message}");
    skep
}

/// The folder of a template for the inputs that it was last built from.
fn newest_folder_of(template: &Path) -> PathBuf {
    let entries = fs::read_dir(template).unwrap().map(|entry| entry.unwrap().path());
    let folders = entries.filter(|path| path.is_dir());
    folders.max_by_key(|folder| folder.metadata().unwrap().modified().unwrap()).unwrap()
}

async fn is_deleted(skep: &Skep, id: &str) {
    let (code, out, errors) = run(skep, &["template", "rm", "big"]);
    assert_eq!((code, out.as_str()), (Some(0), "big is deleted\n"), "{errors}");
    eventually("the end of the files", async || !Path::exists(&files_of(skep, id))).await;
    skep.post("/api/swarm/boot", &json!({"template": "big"})).await.refused(404, "unknown_template");
    assert_eq!(events_of_big(skep, 5)[4]["type"], "template.deleted");
    assert_eq!(skep.get("/api/vms?state=ended").await.ok(200)["vms"][0]["template"], "big");
}
