//! Kills at each step of a copy: the parent runs on, and nothing is left behind.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    copies::{State, assert_goes_on, begin, fork, path_of, state},
    forks::faults::{STEPS, captures, template_folders},
    harness::{Answer, Skep, eventually, temp_dir, try_send},
    steps::{Log, OPTIONS, Step, Victim},
    takeover::{assert_in_order, listed},
};

/// What follows for a fork, until its VMs are on record.
const STEPS_OF_FORK: [Step; 4] = [
    &["is launched for a boot"],
    &["is committed"],
    &["is freed after a fork"],
    &["the VMs of a boot are on record"],
];
/// What follows for a snapshot, until its caller is answered.
const STEPS_OF_SNAPSHOT: [Step; 4] = [
    &["the recipe of the snapshot", "is written"],
    &["the files of a snapshot are written"],
    &["the files of the snapshot", "are complete"],
    &["a snapshot of VM", "is stored"],
];

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_leaves_the_parent_running_and_nothing_else() {
    let mut skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let parent = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &parent).await;
    let mut count = state(&skep, &parent).await.1;
    let of_both = STEPS.map(|step| [("fork", step), ("snapshot", step)]).into_iter().flatten();
    let of_fork = STEPS_OF_FORK.map(|step| ("fork", step));
    let of_snapshot = STEPS_OF_SNAPSHOT.map(|step| ("snapshot", step));
    for (verb, step) in of_both.chain(of_fork).chain(of_snapshot) {
        for victim in [Victim::Server, Victim::Keeper] {
            let round = format!("{verb}, {victim:?} killed after {step:?}");
            eprintln!("{round}");
            let body = if verb == "fork" { json!({"count": 2}) } else { json!({"name": "stored"}) };
            let log = Log::from_now(&skep);
            let request = skep.request(Method::POST, &format!("{}/{verb}", path_of(&parent))).json(&body);
            let request = tokio::spawn(try_send(request));
            skep = victim.kill_at(step, log, skep).await;
            let answer = request.await.unwrap();
            count = assert_goes_on(&skep, &parent, &wanted, count).await;
            match answer {
                Ok(answer) if answer.status == 201 => was_answered(&skep, &answer, &wanted).await,
                _ => was_not_answered(&skep, &parent, &wanted, &round).await,
            }
            eventually("the end of all captures", async || captures(&skep) == 0).await;
            only_the_parent_is_left(&skep, &parent).await;
        }
    }
    // The control: without a kill, both are done.
    let copy = fork(&skep, &parent, &json!({})).await.remove(0);
    assert_goes_on(&skep, &copy, &wanted, count).await;
    skep.post(&format!("{}/snapshot", path_of(&parent)), &json!({"name": "stored"})).await.ok(201);
    skep.delete("/api/templates/stored").await.ok(200);
}

/// The answer may have been faster than the kill.
pub(crate) async fn was_answered(skep: &Skep, answer: &Answer, wanted: &State) {
    let vms = match answer.body["vms"].as_array() {
        Some(vms) => vms.clone(),
        None => {
            assert_eq!(skep.get("/api/templates/stored").await.ok(200)["state"], "ready");
            let booted = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
            booted["vms"].as_array().unwrap().clone()
        }
    };
    for vm in vms {
        assert_goes_on(skep, &vm, wanted, 1).await;
    }
}

/// No VM and no template is listed whose request was not answered, except for one that is complete.
pub(crate) async fn was_not_answered(skep: &Skep, parent: &Value, wanted: &State, round: &str) {
    for vm in listed(skep).await.iter().filter(|vm| vm["id"] != parent["id"]) {
        eprintln!("{round}: it is on record");
        assert_goes_on(skep, vm, wanted, 1).await;
    }
    eventually("the end of what is half made", async || {
        let templates = skep.get("/api/templates").await.ok(200);
        let mut templates = templates["templates"].as_array().unwrap().iter();
        templates.all(|template| template["state"] == "ready")
    })
    .await;
    let templates = skep.get("/api/templates").await.ok(200);
    for template in templates["templates"].as_array().unwrap() {
        if template["name"] == "stored" {
            eprintln!("{round}: it is complete");
            skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
        }
    }
}

/// Ends all VMs but the parent, and deletes what was stored.
pub(crate) async fn only_the_parent_is_left(skep: &Skep, parent: &Value) {
    assert_in_order(skep).await;
    for vm in listed(skep).await.iter().filter(|vm| vm["id"] != parent["id"]) {
        skep.delete(&path_of(vm)).await.ok(200);
    }
    if skep.get("/api/templates/stored").await.status == 200 {
        skep.delete("/api/templates/stored").await.ok(200);
    }
    eventually("the end of the files", async || template_folders(skep) == 0).await;
    assert_in_order(skep).await;
}
