//! The quotas of disk space and of VMs on disk, with real VMs.

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::endless_remote::EndlessRemote;

use crate::{
    harness::{Skep, eventually, send, temp_dir},
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
    eventually("a sample of the disk", async || used_mb(skep).await > above).await;
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

/// A clone for a VM is first fetched into the workspace of its account, so it counts there.
#[tokio::test(flavor = "multi_thread")]
async fn git_for_a_vm_ends_once_it_has_filled_the_disk_space() {
    let skep = Skep::start_as(temp_dir(), |command| {
        command.args(["--git-allow", "127.0.0.1"]);
    })
    .await;
    limit(&skep, &json!({"git_relay": "any"})).await;
    let vm = skep.boot(1).await[0]["id"].as_str().unwrap().to_owned();
    let remote = EndlessRemote::start().await;
    let clone = json!({"vm": vm, "url": remote.url, "path": "/root/clone"});
    run(&skep, &vm, WORK).await;
    let layer = used_mb_after_boot(&skep, 15).await;
    limit(&skep, &json!({"max_disk_mb": layer + 20})).await;
    let refused = skep.post("/api/git/clone", &clone).await;
    assert!(refused.refused(409, "quota_exceeded").contains("`max_disk_mb`"), "{refused:?}");
    let sent = remote.sent_mebibytes();
    assert!((8..256).contains(&sent), "{sent} MiB were sent");
    run(&skep, &vm, "test ! -e /root/clone").await;
    // Nothing is left of it: without a limit, files do not count, and with one, another file fits.
    limit(&skep, &json!({"max_disk_mb": null})).await;
    let layer = used_mb(&skep).await;
    limit(&skep, &json!({"max_disk_mb": layer + 20})).await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    let upload = skep.request(Method::PUT, &format!("/api/files/raw?path={root}/file"));
    send(upload.header("content-type", "application/octet-stream").body(vec![7; 7 << 20])).await.ok(201);
    // The control: without the limit, the clone goes on.
    limit(&skep, &json!({"max_disk_mb": null})).await;
    let before = remote.sent_mebibytes();
    tokio::select! {
        answer = skep.post("/api/git/clone", &clone) => panic!("{answer:?}"),
        () = eventually("more of the pack", async || remote.sent_mebibytes() > before + sent) => {}
    }
}
