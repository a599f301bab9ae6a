//! A VM that runs on after an update of QEMU: its copies have its files alone.

use serde_json::{Value, json};

use crate::{
    copies::{assert_goes_on, begin, fork, path_of, pid_of, state},
    harness::{Skep, images::images_with_template, temp_dir},
    snapshots::thorough::other_machines::{OTHER_ENGINE, change_input, is_not_resumed},
    takeover::assert_in_order,
};

/// The hash of the files that `begin` makes.
const FILES: &str = "cat /root/small-* | sha256sum";

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_an_earlier_qemu_runs_is_copied_with_its_files_alone() {
    let (images, base) = images_with_template();
    let options = ["--image-dir", images.path().to_str().unwrap()];
    let skep = Skep::start_on(temp_dir(), &options).await;
    let vm = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &vm).await;
    let (_, from) = state(&skep, &vm).await;
    let files = skep.output(pid_of(&vm), FILES).await;
    let stopped = skep.stop_and_leave_vms();
    // The process of the VM outlives an update of QEMU, and the manifest tells what started it.
    change_input(&base, "engine", OTHER_ENGINE);
    let skep = stopped.start_with(&options).await;

    let refused = skep.post(&format!("{}/fork", path_of(&vm)), &json!({})).await;
    let message = refused.refused(409, "template_not_ready");
    assert!(message.contains(OTHER_ENGINE) && message.contains("\"memory\": false"), "{message}");
    assert_goes_on(&skep, &vm, &wanted, from).await;
    let order = json!({"name": "stored"});
    let stored = skep.post(&format!("{}/snapshot", path_of(&vm)), &order).await.ok(201);
    assert_eq!(stored["state"], "outdated", "{stored}");
    assert!(stored["own_bytes"].as_u64() > Some(0), "{stored}");
    assert!(stored["error"].as_str().unwrap().contains(OTHER_ENGINE), "{stored}");
    let refused = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await;
    assert!(refused.refused(409, "template_not_ready").contains(OTHER_ENGINE), "{refused:?}");
    assert_goes_on(&skep, &vm, &wanted, from).await;
    // The VM's own process is a child of the keeper that ended.
    assert_eq!(skep.vmms(), Vec::<u32>::new(), "something was launched");

    let order = json!({"template": "stored", "memory": false});
    let copy = skep.post("/api/swarm/boot", &order).await.ok(201)["vms"][0].clone();
    has_files_alone(&skep, &copy, &files).await;
    let paused = skep.post(&format!("{}/pause", path_of(&vm)), &json!({"to": "disk"})).await.ok(200);
    assert_eq!(paused["snapshot_state"], "outdated", "{paused}");
    is_not_resumed(&skep, &vm).await;
    skep.post(&format!("{}/resume", path_of(&vm)), &json!({"memory": false})).await.ok(200);
    let vm = skep.get(&path_of(&vm)).await.ok(200);
    has_files_alone(&skep, &vm, &files).await;
    // This one was booted by the QEMU that is installed.
    let forked = fork(&skep, &vm, &json!({})).await.remove(0);
    has_files_alone(&skep, &forked, &files).await;
    assert_in_order(&skep).await;
}

async fn has_files_alone(skep: &Skep, vm: &Value, files: &str) {
    let found = skep.output(pid_of(vm), &format!("{FILES}; ls /dev/shm")).await;
    assert_eq!(found, files, "{vm}");
}
