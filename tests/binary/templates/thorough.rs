//! Builds that are killed, and templates whose files are damaged: they are built again.

mod updates;

use std::{os::unix::fs::MetadataExt, path::Path};

use serde_json::{Value, json};

use super::{MEMORY_MB, STEP_OF_BUILD, becomes_ready, events, files_of, newest_folder_of};
use crate::harness::{Skep, eventually, eventually_within, images::flip_a_bit};

/// The template `big` is loaded, so only a child meets the damage of its files.
async fn a_damaged_parent_is_built_again_before_its_child(skep: &Skep, dir: &Path) {
    let layer = dir.join("layer.ext4");
    flip_a_bit(&layer);
    // A file system may give the inode of a removed file to the next one.
    let file = || layer.metadata().map(|found| (found.ino(), found.ctime(), found.ctime_nsec())).unwrap();
    let damaged = file();
    let child = skep.post("/api/templates", &json!({"name": "child", "from": "big"})).await.ok(202);
    let ready = becomes_ready(skep, "child").await;
    assert_eq!(ready["id"], child["id"]);
    assert_ne!(file(), damaged, "the child is ready, and its parent is damaged");
    assert_eq!(skep.get("/api/templates/big").await.ok(200)["state"], "ready");
    let booted = skep.post("/api/swarm/boot", &json!({"template": "child"})).await.ok(201);
    assert_eq!(skep.output(booted["vms"][0]["pid"].as_u64().unwrap(), "echo whole").await, "whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_was_killed_and_a_damaged_template_are_built_again() {
    let skep = Skep::start().await;
    let order = json!({"name": "big", "from": "base", "memory_mb": MEMORY_MB});
    let id = skep.post("/api/templates", &order).await.ok(202)["id"].as_str().unwrap().to_owned();
    eventually_within(STEP_OF_BUILD, "the boot of the guest", async || {
        let seen = skep.get("/api/templates/big").await.ok(200);
        seen["progress"].as_str().is_some_and(|step| step.contains("boot of the guest"))
    })
    .await;
    // The keeper ends with the build, and the next one begins it again.
    let skep = skep.crash().start().await;
    becomes_ready(&skep, "big").await;
    let kinds: Vec<Value> = events(&skep, "2").iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["template.building", "template.ready"]);

    let dir = newest_folder_of(&files_of(&skep, &id));
    skep.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201);
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    // A loaded template is in sealed memory, so only the next server meets the damage.
    let data_dir = skep.stop();
    flip_a_bit(&dir.join("layer.ext4"));
    let skep = Skep::start_on(data_dir, &[]).await;
    let message = skep.post("/api/swarm/boot", &json!({"template": "big"})).await;
    let message = message.refused(422, "template_damaged");
    assert!(message.contains("layer.ext4"), "{message}");
    // The server's own template is another one.
    skep.post("/api/swarm/boot", &json!({})).await.ok(201);
    eventually("the record of the damage, or its repair", async || {
        let boot = skep.post("/api/swarm/boot", &json!({"template": "big"})).await;
        boot.status == 201 || skep.get("/api/templates/big").await.ok(200)["state"] != "ready"
    })
    .await;
    becomes_ready(&skep, "big").await;
    eventually("a boot after the repair", async || {
        skep.post("/api/swarm/boot", &json!({"template": "big"})).await.status == 201
    })
    .await;
    a_damaged_parent_is_built_again_before_its_child(&skep, &dir).await;
}
