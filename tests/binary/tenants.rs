//! Accounts with VMs: their quotas, their end, and the end of their keys.

use std::{pin::Pin, time::Duration};

use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Skep, Tenant, eventually, kill, send};

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The events of a command that runs on and on.
type Events = Pin<Box<dyn Stream<Item = (String, Value)> + Send>>;

/// A command that has begun to run, under this key.
async fn streaming(skep: &Skep, key: &str, pid: &Value) -> Events {
    let request = skep.bare(Method::POST, &format!("/api/swarm/vm/{pid}/exec")).bearer_auth(key);
    let body = json!({"command": "echo begun; sleep 3000", "stream": true, "timeout": 3_600_000});
    let response = request.json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200, "{response:?}");
    let events = response.bytes_stream().eventsource().map(|event| {
        let event = event.unwrap();
        (event.event, serde_json::from_str(&event.data).unwrap())
    });
    let mut events: Events = Box::pin(events);
    assert_eq!(events.next().await.unwrap().0, "stdout");
    events
}

/// Waits for the end of a stream, and returns the error that it ends with.
async fn error_at_the_end(mut events: Events) -> Value {
    let last = tokio::time::timeout(PATIENCE, events.next()).await;
    let (kind, error) = last.unwrap_or_else(|_| panic!("the stream goes on")).unwrap();
    assert_eq!(kind, "error", "{error}");
    assert!(events.next().await.is_none());
    error
}

/// Waits for the end of a stream, which must be that of its key.
async fn ends_with_its_key(events: Events) {
    let error = error_at_the_end(events).await;
    assert_eq!((&error["code"], &error["message"]), (&json!("token_expired"), &json!("Token expired")));
}

async fn whoami(skep: &Skep, key: &str) -> Answer {
    send(skep.bare(Method::GET, "/api/whoami").bearer_auth(key)).await
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The number of folders with the memory and the disk of a VM that is on disk.
fn folders_of_vms_on_disk(skep: &Skep) -> usize {
    let entries = std::fs::read_dir(skep.data_dir.path().join("templates")).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("tpl_")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_binds_and_a_change_of_it_acts_on_the_next_boot() {
    let skep = Skep::start().await;
    let acme = skep.tenant("acme").await;
    let boot = async |tenant: &Tenant<'_>| tenant.post("/api/swarm/boot", &json!({"count": 1})).await;
    acme.change(&json!({"max_vms": 0})).await;
    let message = boot(&acme).await.refused(409, "quota_exceeded").to_owned();
    assert!(message.contains("0 of this account's 0"), "{message}");
    acme.change(&json!({"max_vms": 1})).await;
    boot(&acme).await.ok(201);
    let message = boot(&acme).await.refused(409, "quota_exceeded").to_owned();
    assert!(message.contains("0 of this account's 1"), "{message}");
    acme.post("/api/swarm/boot", &json!({"count": 2})).await.refused(400, "invalid_value");
    // The quota of another account is not affected.
    let other = skep.tenant("other").await;
    boot(&other).await.ok(201);
    // VMs beyond a quota live on; memory is a quota of its own.
    acme.change(&json!({"max_vms": null, "max_memory_mb": 1})).await;
    let message = boot(&acme).await.refused(409, "quota_exceeded").to_owned();
    assert!(message.contains("0 of this account's 1 MiB"), "{message}");
    assert_eq!(acme.get("/api/swarm/status").await.ok(200)["count"], 1);
    let memory = acme.get("/api/swarm/status").await.ok(200)["vms"][0]["memory_mb"].as_u64().unwrap();
    acme.change(&json!({"max_memory_mb": 2 * memory})).await;
    boot(&acme).await.ok(201);
    boot(&acme).await.refused(409, "quota_exceeded");
    // Many at once get no more than one at a time.
    acme.change(&json!({"max_vms": 3, "max_memory_mb": null})).await;
    let answers = futures_util::future::join_all((0..4).map(|_| boot(&acme))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_with_vms_is_deleted_by_force_only() {
    let skep = Skep::start().await;
    let (acme, other) = (skep.tenant("acme").await, skep.tenant("other").await);
    let (vm, kept) = (acme.boot().await, other.boot().await);
    let on_disk = format!("/api/swarm/vm/{}", text(&acme.boot().await["id"]));
    acme.post(&format!("{on_disk}/pause"), &json!({"to": "disk"})).await.ok(200);
    assert_eq!(folders_of_vms_on_disk(&skep), 1);
    let stream = streaming(&skep, &acme.key, &vm["pid"]).await;
    let stream_of_other = streaming(&skep, &other.key, &kept["pid"]).await;
    let path = format!("/api/accounts/{}", acme.id);
    let message = skep.delete(&path).await.refused(409, "account_in_use").to_owned();
    assert!(message.contains("`acme`") && message.contains("force=true"), "{message}");
    assert_eq!(whoami(&skep, &acme.key).await.status, 200, "a refusal changes nothing");
    let deleted = skep.delete(&format!("{path}?force=true")).await.ok(200);
    assert_eq!((&deleted["vms_ended"], &deleted["keys_revoked"]), (&json!(2), &json!(1)), "{deleted}");
    // Its key ends first, and its VM at once after that: the stream reports the end that it learns of first.
    let error = error_at_the_end(stream).await;
    assert!(["token_expired", "vm_ended"].contains(&error["code"].as_str().unwrap()), "{error}");
    assert_eq!(whoami(&skep, &acme.key).await.refused(403, "token_expired"), "Token expired");
    skep.get(&path).await.refused(404, "unknown_account");
    let pid = vm["pid"].as_u64().unwrap();
    eventually("the end of the VMM", async || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
    eventually("the end of the files", async || folders_of_vms_on_disk(&skep) == 0).await;
    // The other account is not affected.
    assert_eq!(other.get("/api/swarm/status").await.ok(200)["count"], 1);
    // Its command would end with its stream.
    let look = json!({"command": "cat /proc/[0-9]*/comm | grep -x sleep"});
    let path = format!("/api/swarm/vm/{}/exec", kept["pid"]);
    assert_eq!(other.post(&path, &look).await.ok(200)["exit_code"], 0);
    drop(stream_of_other);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_their_key_however_that_ends() {
    let skep = Skep::start().await;
    let acme = skep.tenant("acme").await;
    let pid = acme.boot().await["pid"].clone();
    let (mut made, mut streams) = (Vec::new(), Vec::new());
    // The one that expires is made last: only its own stream has to begin before its end.
    for (name, life) in
        [("revoked", None), ("all", None), ("stays", None), ("expires", Some(SignedDuration::from_secs(12)))]
    {
        let expires_at = life.map(|life| (Timestamp::now() + life).to_string());
        let request = json!({"name": name, "role": "agent", "expires_at": expires_at});
        let key = acme.post("/api/keys", &request).await.ok(201);
        streams.push(streaming(&skep, key["key"].as_str().unwrap(), &pid).await);
        made.push(key);
    }
    let (ends, expiring) =
        (text(&made[3]["expires_at"]).parse::<Timestamp>().unwrap(), streams.pop().unwrap());
    let mut streams = streams.into_iter();
    acme.delete(&format!("/api/keys/{}", text(&made[0]["id"]))).await.ok(200);
    ends_with_its_key(streams.next().unwrap()).await;
    ends_with_its_key(expiring).await;
    assert!(Timestamp::now() >= ends, "not before its time");
    // A rotation ends nothing, the revocation of all does.
    acme.post(&format!("/api/keys/{}/rotate", text(&made[1]["id"])), &json!({})).await.ok(201);
    assert_eq!(whoami(&skep, made[1]["key"].as_str().unwrap()).await.status, 200);
    acme.delete("/api/keys?all=true").await.ok(200);
    ends_with_its_key(streams.next().unwrap()).await;
    ends_with_its_key(streams.next().unwrap()).await;
    assert_eq!(whoami(&skep, &acme.key).await.status, 200, "the one that called stays");
}

/// A VM of the account `default` with a key that is bound to it.
async fn bound(skep: &Skep, boot: &Value) -> (u64, String) {
    let vm = skep.post("/api/swarm/boot", boot).await.ok(201)["vms"][0].clone();
    let request = json!({"name": vm["id"], "role": "vm", "vm": vm["id"]});
    let made = skep.post("/api/keys", &request).await.ok(201);
    (vm["pid"].as_u64().unwrap(), text(&made["key"]))
}

async fn has_ended(skep: &Skep, how: &str, key: &str) {
    eventually(how, async || whoami(skep, key).await.status == 403).await;
    assert_eq!(whoami(skep, key).await.refused(403, "token_expired"), "Token expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_key_ends_with_its_vm_however_that_ends() {
    let skep = Skep::start().await;
    let (_, stays) = bound(&skep, &json!({})).await;
    let (deleted, key) = bound(&skep, &json!({})).await;
    assert!(whoami(&skep, &key).await.ok(200)["vm"].is_string());
    skep.delete(&format!("/api/swarm/vm/{deleted}")).await.ok(200);
    // The key is revoked together with the end of the VM, without a delay.
    whoami(&skep, &key).await.refused(403, "token_expired");
    let (off, key) = bound(&skep, &json!({})).await;
    skep.post(&format!("/api/swarm/vm/{off}/exec"), &json!({"command": "poweroff; sleep 60"})).await;
    has_ended(&skep, "the end by poweroff", &key).await;
    let (crashed, key) = bound(&skep, &json!({})).await;
    kill(u32::try_from(crashed).unwrap());
    has_ended(&skep, "the end by a crash", &key).await;
    // Its time begins once it has its key.
    let (brief, key) = bound(&skep, &json!({})).await;
    let change = skep.request(Method::PATCH, &format!("/api/swarm/vm/{brief}")).json(&json!({"ttl_ms": 1}));
    send(change).await.ok(200);
    has_ended(&skep, "the end by its time", &key).await;
    assert_eq!(whoami(&skep, &stays).await.status, 200);

    // While no server runs: the next one finds it lost.
    let (lost, key) = bound(&skep, &json!({})).await;
    let left = skep.stop_and_leave_vms();
    kill(u32::try_from(lost).unwrap());
    let skep = left.start().await;
    has_ended(&skep, "the end between two servers", &key).await;
    assert_eq!(whoami(&skep, &stays).await.status, 200);
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    whoami(&skep, &stays).await.refused(403, "token_expired");
}
