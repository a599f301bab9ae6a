//! VMs that start from the disk of a snapshot alone: what an update made outdated keeps its files.

mod thorough;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use skep_template::{MANIFEST, read_manifest};

use crate::{
    copies::path_of,
    harness::{Answer, Skep, binary, command, eventually, output_of, printed},
    takeover::assert_in_order,
};

/// Writes files, and starts a program that has its process id in a file in memory.
const WORK: &str = "echo kept > /root/kept; mkdir /srv/deep; head -c 300000 /dev/urandom > /srv/deep/data
sha256sum /srv/deep/data > /srv/deep/sum; (sleep 100000 >/dev/null 2>&1 & echo $! > /dev/shm/program)";
/// Prints what is there of that. Numbers of processes begin anew with each boot, so the program is found by its name.
const FOUND: &str = "cat /root/kept; sha256sum --quiet -c /srv/deep/sum && echo whole
pgrep -x sleep > /dev/null && echo runs; ls /dev/shm; echo word: $WORD";
const FILES_ALONE: &str = "kept\nwhole\nword:";

async fn run(skep: &Skep, vm: &Value, command: &str) -> String {
    let ran = skep.post(&format!("{}/exec", path_of(vm)), &json!({"command": command})).await.ok(200);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().trim_end().to_owned()
}

async fn boot(skep: &Skep, request: &Value) -> Value {
    let vm = skep.post("/api/swarm/boot", request).await.ok(201)["vms"][0].clone();
    run(skep, &vm, WORK).await;
    vm
}

async fn to_disk(skep: &Skep, vm: &Value) {
    skep.post(&format!("{}/pause", path_of(vm)), &json!({"to": "disk"})).await.ok(200);
}

async fn resume(skep: &Skep, vm: &Value, body: &Value) -> Answer {
    skep.post(&format!("{}/resume", path_of(vm)), body).await
}

/// The folders of the keeper's templates.
fn folders(data_dir: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(data_dir.join("templates")).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    folders.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("tpl_")).collect()
}

/// The folder with the files of a template.
fn files_in(folder: &Path) -> PathBuf {
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.join(MANIFEST).is_file()).unwrap()
}

/// What an update changes, and its value before.
const OTHER_ENGINE: (&str, &str) = ("engine", "qemu 1.2.3");
const OTHER_PROCESSOR: (&str, &str) = ("processor", "Model 5 (0123)");

/// Makes a snapshot one that was taken before an update.
fn make_outdated(folder: &Path, (input, before): (&str, &str)) {
    let dir = files_in(folder);
    let mut manifest = read_manifest(&dir).unwrap();
    manifest.inputs.insert(input.to_owned(), before.to_owned());
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
}

/// Fails unless the VM is the one that it was, with its files alone.
async fn has_its_files_alone(skep: &Skep, before: &Value) -> Value {
    let record = skep.get(&path_of(before)).await.ok(200);
    for field in ["id", "name", "ip", "started_at", "template", "metadata", "boot", "egress"] {
        assert_eq!(record[field], before[field], "{field}");
    }
    assert!(record["pid"].is_u64() && record["resumed_at"].is_string(), "{record}");
    let found = run(skep, before, &format!("{FOUND}; uname -n; cat /run/skep/generation")).await;
    let id = before["id"].as_str().unwrap();
    assert_eq!(found, format!("{FILES_ALONE}\n{}\n{id}", id.replace('_', "-")));
    record
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_vm_on_disk_starts_again_with_its_files() {
    let skep = Skep::start().await;
    let order = json!({"name": "sleeper", "env": {"WORD": "secret"}, "metadata": {"a": 1}});
    let vm = boot(&skep, &order).await;
    let before = run(&skep, &vm, FOUND).await;
    assert_eq!(before, "kept\nwhole\nruns\nprogram\nword: secret", "the control");
    refuses_other_requests(&skep, &vm).await;
    to_disk(&skep, &vm).await;
    assert_eq!(skep.get(&path_of(&vm)).await.ok(200)["snapshot_state"], Value::Null);
    let used = disk_used_mb(&skep).await;
    let data_dir = skep.stop();
    let (_, before) = OTHER_PROCESSOR;
    folders(data_dir.path()).iter().for_each(|folder| make_outdated(folder, OTHER_PROCESSOR));

    let skep = Skep::start_on(data_dir, &[]).await;
    assert!(used > 0 && disk_used_mb(&skep).await == used, "{used}");
    names_the_outdated_vm(&skep, &vm, before).await;
    let refused = resume(&skep, &vm, &json!({})).await;
    let message = refused.refused(409, "template_not_ready");
    for part in [before, "a resume without it (`\"memory\": false`)", "without its programs"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(skep.get(&path_of(&vm)).await.ok(200)["paused_to"], "disk");
    let resumed = output_of(&mut command(&skep, &["resume", "sleeper", "--without-memory"]));
    let line = printed(&resumed);
    let record = has_its_files_alone(&skep, &vm).await;
    assert_eq!(line, format!("{} {} running", record["pid"], vm["id"].as_str().unwrap()));
    // The progress is for terminals alone, and a boot of a guest takes long enough to show it there.
    assert!(resumed.stderr.is_empty(), "{resumed:?}");
    assert_eq!((&record["snapshot_state"], &record["snapshot_error"]), (&Value::Null, &Value::Null));
    let event = first_events(&skep, "vm.resumed", 1).remove(0);
    assert_eq!((&event["vm"], &event["memory"], &event["by"]), (&vm["id"], &json!(false), &json!("request")));
    assert_eq!(skep.get("/api/templates").await.ok(200)["templates"].as_array().unwrap().len(), 1);
    assert_in_order(&skep).await;
}

async fn disk_used_mb(skep: &Skep) -> u64 {
    skep.get("/api/swarm/status").await.ok(200)["disk_used_mb"].as_u64().unwrap()
}

/// Records, lists, log and doctor name the VM, before anybody tries to resume it.
async fn names_the_outdated_vm(skep: &Skep, vm: &Value, reason: &str) {
    let id = vm["id"].as_str().unwrap();
    let records =
        [skep.get(&path_of(vm)).await.ok(200), skep.get("/api/vms").await.ok(200)["vms"][0].clone()];
    for record in records {
        assert_eq!((&record["id"], &record["snapshot_state"]), (&vm["id"], &json!("outdated")), "{record}");
        assert!(record["snapshot_error"].as_str().unwrap().contains(reason), "{record}");
    }
    let list = printed(&output_of(&mut command(skep, &["ps"])));
    assert!(list.contains("on disk, outdated"), "{list}");
    let names_it = |text: &str| ["`sleeper`", id, reason].iter().all(|part| text.contains(part));
    let log = skep.log();
    assert_eq!(log.lines().filter(|line| names_it(line)).count(), 1, "{log}");
    let doctor =
        Command::new(binary()).args(["doctor", "--data-dir"]).arg(skep.data_dir.path()).output().unwrap();
    let findings = String::from_utf8_lossy(&doctor.stdout);
    assert!(findings.lines().any(names_it), "{findings}");
    let event = first_events(skep, "vm.outdated", 1).remove(0);
    assert_eq!(event["vm"], vm["id"], "{event}");
    assert!(event["message"].as_str().unwrap().contains(reason), "{event}");
}

async fn refuses_other_requests(skep: &Skep, vm: &Value) {
    let refused = resume(skep, vm, &json!({"memory": false})).await;
    assert!(refused.refused(409, "vm_not_on_disk").contains("not paused to disk"), "{refused:?}");
    resume(skep, vm, &json!({"memory": "no"})).await.refused(400, "invalid_value");
    resume(skep, vm, &json!({"memories": false})).await.refused(400, "unknown_field");
    let refused = skep.post(&format!("{}/fork", path_of(vm)), &json!({"memory": false})).await;
    assert!(refused.refused(400, "invalid_value").contains("fork"), "{refused:?}");
}

/// Waits for so many events of this type.
fn first_events(skep: &Skep, kind: &str, count: usize) -> Vec<Value> {
    let arguments = ["events", "--from-start", "--types", kind, "-n", &count.to_string(), "--json"];
    let events = printed(&output_of(&mut command(skep, &arguments)));
    events.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_of_an_outdated_snapshot_has_its_files() {
    let skep = Skep::start().await;
    let original = boot(&skep, &json!({"env": {"WORD": "secret"}})).await;
    skep.post(&format!("{}/snapshot", path_of(&original)), &json!({"name": "installed"})).await.ok(201);
    let data_dir = skep.stop();
    let (_, before) = OTHER_ENGINE;
    folders(data_dir.path()).iter().for_each(|folder| make_outdated(folder, OTHER_ENGINE));

    let skep = Skep::start_on(data_dir, &[]).await;
    let refuses = async || {
        let refused = skep.post("/api/swarm/boot", &json!({"template": "installed"})).await;
        let message = refused.refused(409, "template_not_ready");
        for part in [before, "a boot without it (`\"memory\": false`)", "without its programs"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    };
    // By the keeper, or by the record.
    refuses().await;
    let template = "/api/templates/installed";
    eventually("the record", async || skep.get(template).await.ok(200)["state"] == "outdated").await;
    refuses().await;
    let arguments =
        ["boot", "--template", "installed", "--without-memory", "--name", "again", "--env", "WORD=new"];
    printed(&output_of(&mut command(&skep, &arguments)));
    let vm = skep.get("/api/swarm/vm/again").await.ok(200);
    assert_eq!((&vm["template"], &vm["parent"]), (&json!("installed"), &Value::Null), "{vm}");
    assert_eq!(run(&skep, &vm, FOUND).await, format!("{FILES_ALONE} new"));
    assert_in_order(&skep).await;
    skep.delete(template).await.refused(409, "template_in_use");
}
