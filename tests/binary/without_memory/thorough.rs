//! Kills at each step of the start of a VM from its disk, what such a VM can do, damage, and events.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    FILES_ALONE, FOUND, OTHER_ENGINE, boot, files_in, first_events, folders, has_its_files_alone,
    make_outdated, resume, run, to_disk,
};
use crate::{
    copies::{fork, path_of},
    harness::{Skep, command, eventually, images::flip_a_bit, output_of, printed, temp_dir, try_send},
    steps::{Log, OPTIONS, Step, Victim},
    takeover::{self, assert_in_order, ids, listed},
};

/// What the log says after each step, and who is killed then.
const KILLS: [(Step, Victim); 6] = [
    (&["boot of the guest, to be saved"], Victim::Keeper),
    (&["boot of the guest, to be saved"], Victim::Server),
    (&["a guest is booted from the disk of VM"], Victim::Server),
    (&["is restored from disk"], Victim::Server),
    (&["is restored from disk"], Victim::Keeper),
    (&["is resumed on record"], Victim::Keeper),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_a_vm_starts_from_its_disk_loses_nothing() {
    let mut skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let vm = boot(&skep, &json!({"name": "sleeper"})).await;
    for (round, (step, victim)) in KILLS.into_iter().enumerate() {
        eprintln!("{victim:?} killed after {step:?}");
        to_disk(&skep, &vm).await;
        let log = Log::from_now(&skep);
        let request = skep.request(Method::POST, &format!("{}/resume", path_of(&vm)));
        let request = tokio::spawn(try_send(request.json(&json!({"memory": false}))));
        skep = victim.kill_at(step, log, skep).await;
        let answered = request.await.unwrap().is_ok_and(|answer| answer.status == 200);
        let found = skep.get(&path_of(&vm)).await.ok(200);
        assert!(!answered || found["state"] == "running", "{found} after an answer");
        if found["state"] == "paused" {
            // It is there with all that it has.
            resume(&skep, &vm, &json!({})).await.ok(200);
        }
        assert!(run(&skep, &vm, FOUND).await.starts_with("kept\nwhole"));
        assert_in_order(&skep).await;
        if round == 0 {
            // What a killed keeper had begun to build is gone.
            eventually("no files", async || folders(skep.data_dir.path()).is_empty()).await;
        }
    }
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
        make_outdated(&folder, OTHER_ENGINE);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_started_from_its_disk_can_do_what_other_vms_can() {
    let skep = Skep::start().await;
    let vm = boot(&skep, &json!({"name": "sleeper"})).await;
    to_disk(&skep, &vm).await;
    let data_dir = skep.stop();
    folders(data_dir.path()).iter().for_each(|folder| make_outdated(folder, OTHER_ENGINE));
    let mut skep = Skep::start_on(data_dir, &[]).await;
    resume(&skep, &vm, &json!({})).await.refused(409, "template_not_ready");
    let resumed = resume(&skep, &vm, &json!({"memory": false})).await.ok(200);
    assert_eq!((&resumed["state"], &resumed["id"]), (&json!("running"), &vm["id"]), "{resumed}");
    assert_eq!(has_its_files_alone(&skep, &vm).await["pid"], resumed["pid"]);
    run(&skep, &vm, "(sleep 100000 >/dev/null 2>&1 & echo $! > /dev/shm/program)").await;
    let again = "kept\nwhole\nruns\nprogram\nword:";
    for victim in [takeover::Victim::Server, takeover::Victim::Both] {
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
    resume(&skep, &vm, &json!({"memory": false})).await.ok(200);
    has_its_files_alone(&skep, &vm).await;
    let copy = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201)["vms"][0].clone();
    assert_eq!(run(&skep, &copy, FOUND).await, again);
    skep.delete(&path_of(&copy)).await.ok(200);
    skep.delete("/api/templates/stored").await.ok(200);
    assert_in_order(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_an_outdated_or_damaged_snapshot_have_its_files() {
    let skep = Skep::start().await;
    let original = boot(&skep, &json!({"env": {"WORD": "secret"}})).await;
    for name in ["installed", "damaged"] {
        skep.post(&format!("{}/snapshot", path_of(&original)), &json!({"name": name})).await.ok(201);
    }
    let data_dir = skep.stop();
    let stored = folders(data_dir.path());
    let [installed, damaged] = stored.iter().collect::<Vec<_>>()[..] else { panic!("{stored:?}") };
    make_outdated(installed, OTHER_ENGINE);
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
            for part in ["a boot without it (`\"memory\": false`)", "without its programs"] {
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
    printed(&output_of(&mut command(&skep, &arguments)));
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
    assert!(message.refused(422, "template_damaged").contains("\"memory\": false"), "{message:?}");
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
