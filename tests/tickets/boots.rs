//! VMs that are booted for a ticket.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Skep, send};

async fn ticket(skep: &Skep) -> String {
    let made = skep.post("/api/tickets", &json!({"title": "a", "max_attempts": 1})).await.ok(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn record(skep: &Skep, id: &str) -> Value {
    skep.get(&format!("/api/tickets/{id}")).await.ok(200)
}

async fn outcomes(skep: &Skep, id: &str) -> Vec<Value> {
    let history = skep.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    history["attempts"].as_array().unwrap().iter().map(|one| one["outcome"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_holds_the_ticket_that_it_was_booted_for_and_finishes_it_with_its_own_key() {
    let skep = Skep::start().await;
    let (id, other) = (ticket(&skep).await, ticket(&skep).await);
    let booted = skep.post("/api/swarm/boot", &json!({"ticket": id, "env": {"OWN": "x"}})).await.ok(201);
    let vm = &booted["vms"][0];
    let pid = vm["pid"].as_u64().unwrap();
    assert_eq!(vm["ticket"], json!(id));
    let held = record(&skep, &id).await;
    assert_eq!(
        (&held["status"], &held["vm"], &held["attempt"]),
        (&json!("in_progress"), &vm["id"], &json!(1))
    );
    let seen = skep.output(pid, "echo $SKEP_TICKET_ID $SKEP_TICKET_ATTEMPT $OWN $SKEP_API_KEY").await;
    let seen: Vec<&str> = seen.split(' ').collect();
    assert_eq!(seen[..3], [id.as_str(), "1", "x"]);
    let key = seen[3];
    let as_vm = |method, path: &str, body: Value| send(skep.bare(method, path).bearer_auth(key).json(&body));
    let me = as_vm(Method::GET, "/api/whoami", json!({})).await.ok(200);
    assert_eq!(me["vm"], vm["id"], "{me}");
    let done = json!({"status": "completed", "attempt": 1, "result": {"ok": true}});
    as_vm(Method::PATCH, &format!("/api/tickets/{other}"), done.clone()).await.refused(404, "unknown_ticket");
    as_vm(Method::POST, &format!("/api/tickets/{id}/heartbeat"), json!({"attempt": 1})).await.ok(200);
    as_vm(Method::PATCH, &format!("/api/tickets/{id}"), done).await.ok(200);
    assert_eq!(record(&skep, &id).await["result"], json!({"ok": true}));
    // Its key ends with it.
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    as_vm(Method::GET, "/api/whoami", json!({})).await.refused(403, "token_expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_ends_with_the_vm_that_was_booted_for_it() {
    let skep = Skep::start().await;
    let boot = async |id: &str| {
        let booted = skep.post("/api/swarm/boot", &json!({"ticket": id})).await.ok(201);
        booted["vms"][0]["pid"].as_u64().unwrap()
    };
    let (deleted, off) = (ticket(&skep).await, ticket(&skep).await);
    let pid = boot(&deleted).await;
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    assert_eq!(record(&skep, &deleted).await["status"], "pending", "an operator's act does not count");
    let pid = boot(&off).await;
    skep.post(&format!("/api/swarm/vm/{pid}/exec"), &json!({"command": "poweroff; sleep 60"})).await;
    crate::harness::eventually("the end", async || record(&skep, &off).await["status"] == "failed").await;
    assert_eq!(outcomes(&skep, &off).await, [json!("vm_ended")]);
    assert_eq!(outcomes(&skep, &deleted).await, [json!("released")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_works_on_its_ticket_across_a_restart() {
    let skep = Skep::start().await;
    let id = ticket(&skep).await;
    let booted = skep.post("/api/swarm/boot", &json!({"ticket": id})).await.ok(201);
    let pid = booted["vms"][0]["pid"].as_u64().unwrap();
    let skep = skep.stop_and_leave_vms().start().await;
    let vm = skep.get(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    assert_eq!((&vm["ticket"], &vm["id"]), (&json!(id), &booted["vms"][0]["id"]));
    let held = record(&skep, &id).await;
    assert_eq!(
        (&held["status"], &held["vm"], &held["attempt"]),
        (&json!("in_progress"), &vm["id"], &json!(1))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_boot_has_its_effect_once() {
    let skep = Skep::start_on(tempfile::tempdir().unwrap(), &["--max-vms", "2"]).await;
    let boot = |body: Value| {
        let request = skep.request(Method::POST, "/api/swarm/boot").header("idempotency-key", "first");
        send(request.json(&body))
    };
    // A caller that goes away leaves the boot to its end.
    let impatient =
        tokio::time::timeout(std::time::Duration::from_millis(20), boot(json!({"ttl_ms": 600_000})));
    let seen = impatient.await.is_ok();
    crate::harness::eventually("the end of the boot", async || {
        let again = boot(json!({"ttl_ms": 600_000})).await;
        again.status == 201 && (seen || again.headers.contains_key("idempotent-replayed"))
    })
    .await;
    let (one, two) = (boot(json!({"ttl_ms": 600_000})).await, boot(json!({"ttl_ms": 600_000})).await);
    assert_eq!(two.headers["idempotent-replayed"], "true");
    assert_eq!(one.ok(201), two.ok(201));
    assert_eq!(skep.count().await, 1, "one VM of all of these");
    boot(json!({"count": 2})).await.refused(422, "idempotency_mismatch");
    // What failed had no effect, and its name is free.
    let refused = |template: &str| {
        let request = skep.request(Method::POST, "/api/swarm/boot").header("idempotency-key", "second");
        send(request.json(&json!({"template": template})))
    };
    refused("none").await.refused(404, "unknown_template");
    refused("base").await.ok(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_that_fails_gives_the_ticket_back_and_a_ticket_that_is_lost_boots_nothing() {
    let skep = Skep::start_on(tempfile::tempdir().unwrap(), &["--max-vms", "1"]).await;
    let id = ticket(&skep).await;
    let boot = async |body: Value| skep.post("/api/swarm/boot", &body).await;
    boot(json!({"ticket": id, "template": "none"})).await.refused(404, "unknown_template");
    assert_eq!(outcomes(&skep, &id).await, [json!("released")]);
    let other = skep.boot_one().await;
    boot(json!({"ticket": id})).await;
    let found = record(&skep, &id).await;
    assert_eq!(
        (&found["status"], &found["ready"]),
        (&json!("pending"), &json!(true)),
        "no capacity is no attempt"
    );
    skep.delete(&format!("/api/swarm/vm/{other}")).await.ok(200);
    let claimed =
        send(skep.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&json!({"assignee": "a"})));
    claimed.await.ok(200);
    boot(json!({"ticket": id})).await.refused(409, "claim_lost");
    boot(json!({"ticket": "tkt_01jv0000000000000000000000"})).await.refused(404, "unknown_ticket");
    assert_eq!(skep.count().await, 0);
    assert_eq!(record(&skep, &id).await["assignee"], "a");
    let keys = skep.get("/api/keys").await.ok(200);
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "no key of a VM that is none: {keys}");
}
