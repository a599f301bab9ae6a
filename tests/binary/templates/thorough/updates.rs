//! VMs of a template that is outdated, and while it is built again.

use serde_json::{Value, json};
use skep_template::shelf;

use crate::{
    copies::{self, assert_goes_on, fork, path_of},
    harness::{Skep, eventually},
    takeover::assert_in_order,
    templates::{OTHER_BASE, becomes_ready},
};

async fn begin(skep: &Skep) -> Value {
    let order = json!({"name": "big", "from": "base", "memory_mb": 192, "disk_mb": 2560});
    skep.post("/api/templates", &order).await.ok(202)
}

async fn state(skep: &Skep) -> String {
    skep.get("/api/templates/big").await.ok(200)["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_an_outdated_template_are_copied_and_paused_to_disk() {
    let skep = Skep::start().await;
    begin(&skep).await;
    becomes_ready(&skep, "big").await;
    let vm = skep.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201)["vms"][0].clone();
    let wanted = copies::begin(&skep, &vm).await;
    let (_, from) = copies::state(&skep, &vm).await;
    let stopped = skep.stop_and_leave_vms();
    // The build of the template waits for this lock. `base` has an image directory of its own.
    let lock = shelf::lock(&stopped.path().join("templates"), || ()).unwrap();
    let skep = stopped.start_with(&OTHER_BASE).await;
    eventually("the record", async || state(&skep).await == "outdated").await;

    let vm = again_from_disk(&skep, &vm).await;
    assert_goes_on(&skep, &vm, &wanted, from).await;
    let order = json!({"name": "stored"});
    let stored = skep.post(&format!("{}/snapshot", path_of(&vm)), &order).await.ok(201);
    assert_eq!((&stored["state"], &stored["parent"]), (&json!("ready"), &json!("big")), "{stored}");
    let of_snapshot = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
    let forked = fork(&skep, &vm, &json!({})).await.remove(0);
    for copy in [&of_snapshot["vms"][0], &forked] {
        assert_goes_on(&skep, copy, &wanted, from).await;
        skep.delete(&path_of(copy)).await.ok(200);
    }
    assert_eq!(state(&skep).await, "outdated", "the control");

    drop(lock);
    becomes_ready(&skep, "big").await;
    let vm = again_from_disk(&skep, &vm).await;
    assert_goes_on(&skep, &vm, &wanted, from).await;
    assert_in_order(&skep).await;
}

/// Pauses the VM to disk and resumes it. Returns its record.
async fn again_from_disk(skep: &Skep, vm: &Value) -> Value {
    let paused = skep.post(&format!("{}/pause", path_of(vm)), &json!({"to": "disk"})).await.ok(200);
    assert_eq!(paused["paused_to"], "disk", "{paused}");
    skep.post(&format!("{}/resume", path_of(vm)), &json!({})).await.ok(200);
    skep.get(&path_of(vm)).await.ok(200)
}
