//! Other copies, and ends of the parent, during a copy: nothing is left behind.

use reqwest::Method;
use serde_json::json;

use crate::{
    copies::{assert_goes_on, begin, path_of, pid_of, state},
    forks::faults::{STEPS, captures, template_folders},
    harness::{Skep, eventually, send, temp_dir},
    steps::{Log, OPTIONS, Step},
    takeover::assert_in_order,
};

#[tokio::test(flavor = "multi_thread")]
async fn copies_at_the_same_time_and_ends_during_a_copy() {
    let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let parent = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &parent).await;
    let (_, from) = state(&skep, &parent).await;
    let path = |verb: &str| format!("{}/{verb}", path_of(&parent));
    let (first, stored, second) = (json!({}), json!({"name": "stored"}), json!({}));
    let (first_path, stored_path) = (path("fork"), path("snapshot"));
    let (first, stored, second) = tokio::join!(
        skep.post(&first_path, &first),
        skep.post(&stored_path, &stored),
        skep.post(&first_path, &second)
    );
    stored.ok(201);
    let booted = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await;
    for answer in [first, second, booted] {
        assert_goes_on(&skep, &answer.ok(201)["vms"][0], &wanted, from).await;
    }
    assert_goes_on(&skep, &parent, &wanted, from).await;
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    skep.delete("/api/templates/stored").await.ok(200);
    for step in STEPS {
        the_parent_ends_after(&skep, step).await;
    }
    assert_eq!((captures(&skep), template_folders(&skep)), (0, 0));
}

async fn the_parent_ends_after(skep: &Skep, step: Step) {
    for (verb, body) in [("fork", json!({"count": 2})), ("snapshot", json!({"name": "stored"}))] {
        let parent = skep.boot(1).await.remove(0);
        let log = Log::from_now(skep);
        let copy = skep.request(Method::POST, &format!("{}/{verb}", path_of(&parent))).json(&body);
        let copy = tokio::spawn(send(copy));
        tokio::task::spawn_blocking(move || log.wait_for(step)).await.unwrap();
        skep.delete(&path_of(&parent)).await.ok(200);
        let copied = copy.await.unwrap();
        if copied.status != 201 {
            assert!([404, 409].contains(&copied.status.as_u16()), "{verb}, after {step:?}: {copied:?}");
        } else if verb == "fork" {
            assert_eq!(skep.output(pid_of(&copied.body["vms"][1]), "echo alive").await, "alive");
        } else {
            skep.delete("/api/templates/stored").await.ok(200);
        }
        skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
        skep.get("/api/templates/stored").await.refused(404, "unknown_template");
        eventually("the end of all captures", async || captures(skep) == 0).await;
    }
    assert_in_order(skep).await;
}
