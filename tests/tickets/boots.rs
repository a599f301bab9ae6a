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

const UNTIL_TOLD: &str = "echo begun; while [ ! -e /root/end ]; do sleep 0.1; done; echo over; exit 3";

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_held_while_the_command_of_its_boot_runs() {
    let skep = Skep::start().await;
    let id = ticket(&skep).await;
    let booted = skep.post("/api/swarm/boot", &json!({"ticket": id, "command": UNTIL_TOLD})).await.ok(201);
    let (pid, exec_id) = (booted["vms"][0]["pid"].as_u64().unwrap(), booted["vms"][0]["exec_id"].clone());
    let path = format!("/api/swarm/vm/{pid}/exec/{}", exec_id.as_str().unwrap());
    // Whoever watches it and goes away leaves it running.
    let mut watched = skep.request(Method::GET, &path).send().await.unwrap();
    let first = watched.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("begun"), "{first:?}");
    drop(watched);
    assert_eq!(skep.output(pid, "echo $SKEP_TICKET_ID; touch /root/seen").await, id);
    assert_eq!(record(&skep, &id).await["status"], "in_progress");
    skep.output(pid, "touch /root/end").await;
    crate::harness::eventually("the end", async || record(&skep, &id).await["status"] == "failed").await;
    assert_eq!(outcomes(&skep, &id).await, [json!("command_ended")]);
    // The VM lives on, with all that the command printed.
    assert_eq!(skep.output(pid, "ls /root/seen").await, "/root/seen");
    let whole = skep.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert!(
        whole.contains("begun") && whole.contains("over") && whole.contains("\"exit_code\":3"),
        "{whole}"
    );
    assert_eq!(skep.get(&format!("/api/swarm/vm/{pid}")).await.ok(200)["exec_id"], exec_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_a_boot_outlives_the_server() {
    let skep = Skep::start().await;
    let (stays, ends) = (ticket(&skep).await, ticket(&skep).await);
    let boot = async |id: &str, command: &str| {
        let order = json!({"ticket": id, "command": command});
        skep.post("/api/swarm/boot", &order).await.ok(201)["vms"][0]["pid"].as_u64().unwrap()
    };
    let staying = boot(&stays, UNTIL_TOLD).await;
    boot(&ends, "sleep 3").await;
    let skep = skep.stop_and_leave_vms().start().await;
    crate::harness::eventually("the end of one", async || record(&skep, &ends).await["status"] == "failed")
        .await;
    assert_eq!(record(&skep, &stays).await["status"], "in_progress");
    skep.output(staying, "touch /root/end").await;
    crate::harness::eventually("the end of both", async || record(&skep, &stays).await["status"] == "failed")
        .await;
    assert_eq!(outcomes(&skep, &stays).await, [json!("command_ended")]);
    assert_eq!(outcomes(&skep, &ends).await, [json!("command_ended")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_vm_of_a_boot_runs_its_command_and_one_that_cannot_be_run_boots_nothing() {
    let skep = Skep::start().await;
    let order = json!({"count": 2, "command": "echo $WORD > /root/word", "env": {"WORD": "w"}});
    let booted = skep.post("/api/swarm/boot", &order).await.ok(201);
    for vm in booted["vms"].as_array().unwrap() {
        let pid = vm["pid"].as_u64().unwrap();
        crate::harness::eventually("the word", async || {
            skep.output(pid, "cat /root/word 2>/dev/null; true").await == "w"
        })
        .await;
    }
    let refused = |command: String| json!({"count": 1, "command": command});
    skep.post("/api/swarm/boot", &refused("a\0b".to_owned())).await.refused(400, "invalid_value");
    skep.post("/api/swarm/boot", &refused("x".repeat(1 << 17))).await.refused(400, "invalid_value");
    assert_eq!(skep.count().await, 2);
    let agent = skep.post("/api/keys", &json!({"name": "no exec", "scopes": ["swarm:write"]})).await.ok(201);
    let key = agent["key"].as_str().unwrap();
    let asked = skep.bare(Method::POST, "/api/swarm/boot").bearer_auth(key).json(&refused("true".to_owned()));
    send(asked).await.refused(403, "scope_missing");
}
