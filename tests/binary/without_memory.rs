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
    copies::{fork, path_of},
    harness::{Answer, Skep, binary, command, eventually, images::flip_a_bit, output_of},
    takeover::{Victim, assert_in_order, ids, listed},
};

/// Writes files, and starts a program that has its process id in a file in memory.
const WORK: &str = "echo kept > /root/kept; mkdir /srv/deep; head -c 3000000 /dev/urandom > /srv/deep/data
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

/// Makes a snapshot one of another version of QEMU.
fn make_outdated(folder: &Path) {
    let dir = files_in(folder);
    let mut manifest = read_manifest(&dir).unwrap();
    let engine = manifest.inputs.insert("engine".to_owned(), "qemu 1.2.3".to_owned());
    assert!(engine.is_some_and(|engine| engine.starts_with("qemu")));
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
    folders(data_dir.path()).iter().for_each(|folder| make_outdated(folder));

    let skep = Skep::start_on(data_dir, &[]).await;
    assert!(used > 0 && disk_used_mb(&skep).await == used, "{used}");
    names_the_outdated_vm(&skep, &vm).await;
    let refused = resume(&skep, &vm, &json!({})).await;
    let message = refused.refused(409, "template_not_ready");
    for part in ["qemu 1.2.3", "\"memory\": false", "skep resume --without-memory"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(skep.get(&path_of(&vm)).await.ok(200)["paused_to"], "disk");
    let resumed = resume(&skep, &vm, &json!({"memory": false})).await.ok(200);
    assert_eq!((&resumed["state"], &resumed["id"]), (&json!("running"), &vm["id"]), "{resumed}");
    let record = has_its_files_alone(&skep, &vm).await;
    assert_eq!(record["pid"], resumed["pid"]);
    assert_eq!((&record["snapshot_state"], &record["snapshot_error"]), (&Value::Null, &Value::Null));
    let event = last_resume(&skep);
    assert_eq!((&event["vm"], &event["memory"], &event["by"]), (&vm["id"], &json!(false), &json!("request")));
    assert_eq!(skep.get("/api/templates").await.ok(200)["templates"].as_array().unwrap().len(), 1);
    assert_in_order(&skep).await;
    can_do_what_other_vms_can(skep, vm).await;
}

async fn disk_used_mb(skep: &Skep) -> u64 {
    skep.get("/api/swarm/status").await.ok(200)["disk_used_mb"].as_u64().unwrap()
}

/// Records, lists, log and doctor name the VM, before anybody tries to resume it.
async fn names_the_outdated_vm(skep: &Skep, vm: &Value) {
    let id = vm["id"].as_str().unwrap();
    let records =
        [skep.get(&path_of(vm)).await.ok(200), skep.get("/api/vms").await.ok(200)["vms"][0].clone()];
    for record in records {
        assert_eq!((&record["id"], &record["snapshot_state"]), (&vm["id"], &json!("outdated")), "{record}");
        assert!(record["snapshot_error"].as_str().unwrap().contains("qemu 1.2.3"), "{record}");
    }
    let printed = output_of(&mut command(skep, &["ps"]));
    assert!(String::from_utf8_lossy(&printed.stdout).contains("on disk, outdated"), "{printed:?}");
    let names_it = |text: &str| ["`sleeper`", id, "qemu 1.2.3"].iter().all(|part| text.contains(part));
    let log = skep.log();
    assert_eq!(log.lines().filter(|line| names_it(line)).count(), 1, "{log}");
    let doctor =
        Command::new(binary()).args(["doctor", "--data-dir"]).arg(skep.data_dir.path()).output().unwrap();
    let printed = String::from_utf8_lossy(&doctor.stdout);
    assert!(printed.lines().any(names_it), "{printed}");
}

async fn refuses_other_requests(skep: &Skep, vm: &Value) {
    let refused = resume(skep, vm, &json!({"memory": false})).await;
    assert!(refused.refused(409, "vm_not_on_disk").contains("not paused to disk"), "{refused:?}");
    resume(skep, vm, &json!({"memory": "no"})).await.refused(400, "invalid_value");
    resume(skep, vm, &json!({"memories": false})).await.refused(400, "unknown_field");
    let refused = skep.post(&format!("{}/fork", path_of(vm)), &json!({"memory": false})).await;
    assert!(refused.refused(400, "invalid_value").contains("fork"), "{refused:?}");
}

fn last_resume(skep: &Skep) -> Value {
    first_events(skep, "vm.resumed", 1).remove(0)
}

/// Waits for so many events of this type.
fn first_events(skep: &Skep, kind: &str, count: usize) -> Vec<Value> {
    let arguments = ["events", "--from-start", "--types", kind, "-n", &count.to_string(), "--json"];
    let printed = output_of(&mut command(skep, &arguments));
    assert!(printed.status.success(), "{printed:?}");
    let lines = printed.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_no_second_event_of_an_outdated_vm() {
    let mut skep = Skep::start().await;
    let mut stored = Vec::new();
    for name in ["first", "second"] {
        let before = folders(skep.data_dir.path());
        let vm = skep.post("/api/swarm/boot", &json!({"name": name})).await.ok(201)["vms"][0].clone();
        to_disk(&skep, &vm).await;
        let after = folders(skep.data_dir.path());
        stored.push((vm, after.difference(&before).next().unwrap().clone()));
    }
    stored.sort_by_key(|(vm, _)| vm["id"].as_str().unwrap().to_owned());
    let mut outdated = Vec::new();
    for (vm, folder) in stored {
        let data_dir = skep.stop();
        make_outdated(&folder);
        skep = Skep::start_on(data_dir, &[]).await;
        outdated.push((vm["id"].clone(), vm["name"].clone()));
        // All VMs are recorded at once, in the order of their ids, so a second event of the first VM would come before that of the
        // second VM.
        let events = first_events(&skep, "vm.outdated", outdated.len());
        let found: Vec<_> = events.iter().map(|event| (event["vm"].clone(), event["name"].clone())).collect();
        assert_eq!(found, outdated, "{events:?}");
        let have_reasons = |event: &Value| event["message"].as_str().unwrap().contains("qemu 1.2.3");
        assert!(events.iter().all(have_reasons), "{events:?}");
    }
}

/// Copies, pauses and takeovers of a VM that was started from its disk alone.
async fn can_do_what_other_vms_can(mut skep: Skep, vm: Value) {
    run(&skep, &vm, "(sleep 100000 >/dev/null 2>&1 & echo $! > /dev/shm/program)").await;
    let again = "kept\nwhole\nruns\nprogram\nword:";
    for victim in [Victim::Server, Victim::Both] {
        skep = victim.kill(skep).await;
        assert_eq!(ids(&listed(&skep).await), ids(std::slice::from_ref(&vm)));
        assert_eq!(run(&skep, &vm, FOUND).await, again);
        to_disk(&skep, &vm).await;
        resume(&skep, &vm, &json!({"memory": true})).await.ok(200);
        assert_eq!(run(&skep, &vm, FOUND).await, again, "with its memory");
        let copy = fork(&skep, &vm, &json!({})).await.remove(0);
        assert_eq!(run(&skep, &copy, FOUND).await, again);
        skep.delete(&path_of(&copy)).await.ok(200);
    }
    skep.post(&format!("{}/snapshot", path_of(&vm)), &json!({"name": "stored"})).await.ok(201);
    to_disk(&skep, &vm).await;
    let printed = output_of(&mut command(&skep, &["resume", "sleeper", "--without-memory"]));
    assert!(
        printed.status.success() && String::from_utf8_lossy(&printed.stdout).ends_with(" running\n"),
        "{printed:?}"
    );
    // The progress is for terminals alone, and a boot of a guest takes long enough to show it there.
    assert!(printed.stderr.is_empty(), "{printed:?}");
    has_its_files_alone(&skep, &vm).await;
    let copy = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201)["vms"][0].clone();
    assert_eq!(run(&skep, &copy, FOUND).await, again);
    skep.delete(&path_of(&copy)).await.ok(200);
    skep.delete("/api/templates/stored").await.ok(200);
    assert_in_order(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_an_outdated_snapshot_have_its_files() {
    let skep = Skep::start().await;
    let original = boot(&skep, &json!({"env": {"WORD": "secret"}})).await;
    for name in ["installed", "damaged"] {
        skep.post(&format!("{}/snapshot", path_of(&original)), &json!({"name": name})).await.ok(201);
    }
    let data_dir = skep.stop();
    let stored = folders(data_dir.path());
    let [installed, damaged] = stored.iter().collect::<Vec<_>>()[..] else { panic!("{stored:?}") };
    make_outdated(installed);
    flip_a_bit(&files_in(damaged).join("delta"));

    let skep = Skep::start_on(data_dir, &[]).await;
    for (name, status, code) in
        [("installed", 409, "template_not_ready"), ("damaged", 422, "template_damaged")]
    {
        let path = format!("/api/templates/{name}");
        let before = skep.post("/api/swarm/boot", &json!({"template": name})).await;
        before.refused(status, code);
        let has_state = async || skep.get(&path).await.ok(200)["state"] != "ready";
        eventually("the record of the state", has_state).await;
        let refused = skep.post("/api/swarm/boot", &json!({"template": name})).await;
        for message in [before.refused(status, code), refused.refused(status, code)] {
            for part in ["\"memory\": false", "--without-memory", "without its programs"] {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
    }
    let order = json!({"template": "installed", "memory": false, "count": 2, "env": {"WORD": "new"}});
    let vms = skep.post("/api/swarm/boot", &order).await.ok(201)["vms"].as_array().unwrap().clone();
    for vm in &vms {
        assert_eq!((&vm["template"], &vm["parent"]), (&json!("installed"), &Value::Null), "{vm}");
        assert_eq!(run(&skep, vm, FOUND).await, format!("{FILES_ALONE} new"));
    }
    let arguments = ["boot", "--template", "damaged", "--without-memory", "--name", "by-command"];
    let printed = output_of(&mut command(&skep, &arguments));
    assert!(printed.status.success(), "{printed:?}");
    let vm = skep.get("/api/swarm/vm/by-command").await.ok(200);
    assert_eq!(run(&skep, &vm, FOUND).await, FILES_ALONE);
    // A template that is no snapshot has no programs.
    let order = json!({"template": "base", "memory": false});
    skep.post("/api/swarm/boot", &order).await.ok(201);
    assert_in_order(&skep).await;
    skep.delete("/api/templates/installed").await.refused(409, "template_in_use");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_disk_is_found_and_a_damaged_memory_is_not_needed() {
    let skep = Skep::start().await;
    let (mut vms, mut stored) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let before = folders(skep.data_dir.path());
        let vm = boot(&skep, &json!({})).await;
        to_disk(&skep, &vm).await;
        let after = folders(skep.data_dir.path());
        stored.push(after.difference(&before).next().unwrap().clone());
        vms.push(vm);
    }
    for file in ["delta", "ram", "state"] {
        // Other templates have the same file of the memory.
        let path = files_in(&stored[0]).join(file);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, content).unwrap();
        flip_a_bit(&path);
    }
    let layer = files_in(&stored[1]).join("layer.ext4");
    damage_data_of(&layer);
    let message = resume(&skep, &vms[0], &json!({})).await;
    assert!(message.refused(422, "template_damaged").contains("--without-memory"), "{message:?}");
    resume(&skep, &vms[0], &json!({"memory": false})).await.ok(200);
    has_its_files_alone(&skep, &vms[0]).await;
    let message = resume(&skep, &vms[1], &json!({"memory": false})).await;
    assert!(message.refused(422, "template_damaged").contains("disk"), "{message:?}");
    let record = skep.get(&path_of(&vms[1])).await.ok(200);
    assert_eq!((&record["paused_to"], &record["pid"]), (&json!("disk"), &Value::Null), "{record}");
    skep.delete(&path_of(&vms[1])).await.ok(200);
    assert_in_order(&skep).await;
}

/// Flips a bit of data of a sparse file, and not of a hole.
fn damage_data_of(layer: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(layer).unwrap();
    // The superblock of ext4 begins here.
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1024).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1024).unwrap();
}
