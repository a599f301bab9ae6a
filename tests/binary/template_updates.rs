//! Templates of another size that an update makes outdated.

mod thorough;

use serde_json::{Value, json};

use crate::{
    harness::{Skep, command, eventually_within},
    templates::STEP_OF_BUILD,
};

const TEMPLATE: &str = "/api/templates/big";

async fn begin(skep: &Skep) -> Value {
    let order = json!({"name": "big", "from": "base", "memory_mb": 192, "disk_mb": 2560});
    skep.post("/api/templates", &order).await.ok(202)
}

async fn state(skep: &Skep) -> String {
    skep.get(TEMPLATE).await.ok(200)["state"].as_str().unwrap().to_owned()
}

async fn becomes_ready(skep: &Skep) {
    // A build takes some seconds, and `eventually` waits for at most some more: each step begins a new wait.
    loop {
        let before = skep.get(TEMPLATE).await.ok(200);
        if before["state"] == "ready" {
            return;
        }
        assert_ne!(before["state"], "failed", "{before}");
        eventually_within(STEP_OF_BUILD, "the next step of the build", async || {
            skep.get(TEMPLATE).await.ok(200) != before
        })
        .await;
    }
}

async fn boots(skep: &Skep) {
    let booted = skep.post("/api/swarm/boot", &json!({"template": "big"})).await.ok(201);
    let pid = booted["vms"][0]["pid"].as_u64().unwrap();
    assert_eq!(skep.output(pid, "echo lives").await, "lives");
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
}

/// The first events of templates; waits until there are as many.
fn first_events(skep: &Skep, count: u32) -> Vec<Value> {
    let count = count.to_string();
    let arguments = ["events", "--from-start", "--types", "template.*", "-n", &count, "--json"];
    let output = command(skep, &arguments).output().unwrap();
    let events = String::from_utf8(output.stdout).unwrap();
    events.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_makes_a_template_outdated_and_it_is_built_again() {
    let skep = Skep::start().await;
    begin(&skep).await;
    becomes_ready(&skep).await;
    let data_dir = skep.stop();
    // An input of templates that a test can change. `base` is baked again at the start.
    let skep = Skep::start_on(data_dir, &["--shell-ahead", "off"]).await;
    // Until the server has compared it with its inputs, the record says what the last server knew.
    assert_eq!(first_events(&skep, 3)[2]["type"], "template.outdated");
    becomes_ready(&skep).await;
    boots(&skep).await;
    assert_eq!(state(&skep).await, "ready");
    let events = first_events(&skep, 4);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["template.building", "template.ready", "template.outdated", "template.ready"]);
    let reason = events[2]["reason"].as_str().unwrap();
    assert!(reason.contains("shell_ahead"), "{reason}");
}
