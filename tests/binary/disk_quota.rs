//! The quotas of disk space and of VMs on disk, with real VMs.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    harness::{Skep, send},
    takeover::{Victim, assert_in_order, listed},
};

/// Changes about 20 MiB of memory and 16 MiB of the disk.
const WORK: &str = "head -c 20M /dev/urandom > /dev/shm/memory; head -c 16M /dev/urandom > /root/disk; sync";

/// Changes the account of the server's administrator, whose VMs and templates these are.
async fn limit(skep: &Skep, limits: &Value) {
    let account = skep.get("/api/whoami").await.ok(200)["account"]["id"].as_str().unwrap().to_owned();
    send(skep.request(Method::PATCH, &format!("/api/accounts/{account}")).json(limits)).await.ok(200);
}

async fn used_mb(skep: &Skep) -> u64 {
    skep.get("/api/swarm/status").await.ok(200)["disk_used_mb"].as_u64().unwrap()
}

/// Settles after at most a sample of the VMs.
async fn used_mb_after_boot(skep: &Skep, above: u64) -> u64 {
    crate::harness::eventually("a sample of the disk", async || used_mb(skep).await > above).await;
    used_mb(skep).await
}

async fn runs_on(skep: &Skep, vm: &str) {
    let record = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200);
    assert_eq!(record["state"], "running", "{record}");
    run(skep, vm, "test -s /dev/shm/memory && test -s /root/disk").await;
}

async fn run(skep: &Skep, vm: &str, command: &str) {
    let ran = skep.post(&format!("/api/swarm/vm/{vm}/exec"), &json!({"command": command})).await.ok(200);
    assert_eq!(ran["exit_code"], 0, "{ran}");
}

/// Fails unless the request is refused for this limit, and the VM runs on.
async fn is_refused(skep: &Skep, vm: &str, path: &str, body: &Value, limit: &str) {
    let refused = skep.post(path, body).await;
    let message = refused.refused(409, "quota_exceeded").to_owned();
    assert!(message.contains(limit) && message.contains("end"), "{path}: {message}");
    runs_on(skep, vm).await;
    assert_eq!(listed(skep).await.len(), 1, "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_has_no_more_on_disk_than_it_may() {
    let skep = Skep::start().await;
    let id = skep.boot(1).await[0]["id"].as_str().unwrap().to_owned();
    let vm = format!("/api/swarm/vm/{id}");
    let (pause, snapshot) = (format!("{vm}/pause"), format!("{vm}/snapshot"));
    run(&skep, &id, WORK).await;
    limit(&skep, &json!({"max_paused_vms": 0})).await;
    is_refused(&skep, &id, &pause, &json!({"to": "disk"}), "`max_paused_vms`").await;
    limit(&skep, &json!({"max_paused_vms": 1})).await;
    let layer = used_mb_after_boot(&skep, 15).await;
    let stored = skep.post(&snapshot, &json!({"name": "first"})).await.ok(201);
    let own = stored["own_bytes"].as_u64().unwrap() >> 20;
    assert!(own >= 36, "{stored}");
    let used = used_mb(&skep).await;
    assert!(used >= layer + own, "{used}");

    limit(&skep, &json!({"max_disk_mb": used + 10})).await;
    is_refused(&skep, &id, &snapshot, &json!({"name": "second"}), "`max_disk_mb`").await;
    is_refused(&skep, &id, &pause, &json!({"to": "disk"}), "`max_disk_mb`").await;
    is_refused(&skep, &id, &format!("{vm}/fork"), &json!({}), "`max_disk_mb`").await;
    is_refused(&skep, &id, "/api/templates", &json!({"name": "built", "from": "base"}), "`max_disk_mb`")
        .await;
    limit(&skep, &json!({"max_disk_mb": used - 1})).await;
    is_refused(&skep, &id, "/api/swarm/boot", &json!({}), "`max_disk_mb`").await;
    assert_eq!(skep.get("/api/templates").await.ok(200)["templates"].as_array().unwrap().len(), 2);
    two_at_once(&skep, &snapshot, used, own).await;

    // A deletion makes room.
    limit(&skep, &json!({"max_disk_mb": used + 10})).await;
    skep.delete("/api/templates/first").await.ok(200);
    skep.post(&pause, &json!({"to": "disk"})).await.ok(200);
    let skep = counts_on_disk(skep, &id).await;
    runs_on(&skep, &id).await;
    assert_in_order(&skep).await;
}

/// Where one snapshot fits, two at once do not exceed the limit.
async fn two_at_once(skep: &Skep, snapshot: &str, used: u64, own: u64) {
    limit(skep, &json!({"max_disk_mb": used + own + own / 2})).await;
    let (one, other) = (json!({"name": "one"}), json!({"name": "other"}));
    let (one, other) = tokio::join!(skep.post(snapshot, &one), skep.post(snapshot, &other));
    let stored: Vec<_> = [&one, &other].into_iter().filter(|answer| answer.status == 201).collect();
    assert!(stored.len() <= 1, "{one:?} {other:?}");
    assert!(used_mb(skep).await <= used + own + own / 2);
    for name in ["one", "other"] {
        // At most one of them is there.
        let _ = skep.delete(&format!("/api/templates/{name}")).await;
    }
}

/// A VM on disk counts there, also for the next server, and not for `max_vms` before its resume.
async fn counts_on_disk(skep: Skep, id: &str) -> Skep {
    let used = used_mb(&skep).await;
    assert!(used >= 36, "{used}");
    let skep = Victim::Server.kill(skep).await;
    assert_eq!(used_mb(&skep).await, used);
    limit(&skep, &json!({"max_vms": 1, "max_disk_mb": used + 200})).await;
    let other = skep.boot(1).await[0]["id"].as_str().unwrap().to_owned();
    let other = format!("/api/swarm/vm/{other}");
    // `max_paused_vms` is 1.
    let refused = skep.post(&format!("{other}/pause"), &json!({"to": "disk"})).await;
    assert!(
        refused.refused(409, "quota_exceeded").contains("1 VMs on disk (`max_paused_vms`), and has 1"),
        "{refused:?}"
    );
    let resume = format!("/api/swarm/vm/{id}/resume");
    let refused = send(skep.request(Method::POST, &resume)).await;
    assert!(refused.refused(409, "quota_exceeded").contains("0 of this account's 1"), "{refused:?}");
    skep.delete(&other).await.ok(200);
    send(skep.request(Method::POST, &resume)).await.ok(200);
    skep
}
