//! Idle VMs on disk, and kills of server and keeper.

use serde_json::json;

use super::{BEGIN, LOOK, boot, path, paused, run, stays_awake};
use crate::{
    harness::Skep,
    takeover::{VICTIMS, assert_in_order},
};

#[tokio::test(flavor = "multi_thread")]
async fn calls_resume_an_idle_vm_on_disk_also_after_kills() {
    let mut skep = Skep::start().await;
    let vm = boot(&skep, &json!({"idle_timeout_ms": 1000, "on_idle": "pause_to_disk"})).await;
    run(&skep, &path(&vm), BEGIN).await;
    paused(&skep, &vm, "disk").await;
    let id = vm["id"].as_str().unwrap();
    let read = skep.get(&format!("/api/files/read?vm={id}&path=/root/file")).await.ok(200);
    assert_eq!(read["content"], "kept\n");
    paused(&skep, &vm, "disk").await;
    let copies = skep.post(&format!("{}/fork", path(&vm)), &json!({})).await.ok(201);
    assert_eq!(run(&skep, &path(&copies["vms"][0]), LOOK).await, "kept");
    skep.delete(&path(&copies["vms"][0])).await.ok(200);
    for victim in VICTIMS {
        paused(&skep, &vm, "disk").await;
        skep = victim.kill(skep).await;
        assert_eq!(run(&skep, &path(&vm), LOOK).await, "kept", "{victim:?}");
    }
    stays_awake(&skep, &vm).await;
    assert_in_order(&skep).await;
}
