//! Changes of a policy while the egress process does not answer.

use std::fs::File;

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{
    binary::{Answer, send},
    eventually,
    process::{is_gone, stop},
    temp_dir,
};

use super::{
    OPTIONS, boot, fetch, is_refusal,
    life::{begin_long_connection, recorded},
    world::World,
};
use crate::harness::Skep;

async fn change(skep: &Skep, vm: u64, policy: &Value) -> Answer {
    let request = skep.request(Method::PATCH, &format!("/api/swarm/vm/{vm}"));
    send(request.json(&json!({"egress": policy}))).await
}

/// Asserts that the policy of a VM allows the first one of these hosts and not the second one.
async fn assert_policy(skep: &Skep, vm: u64, policy: &Value, [open, closed]: [&str; 2]) {
    assert_eq!(&skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["egress"], policy);
    let report = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200);
    assert_eq!(&report["policy"], policy, "{report}");
    let reached = fetch(skep, vm, &format!("-m 20 http://{open}/")).await;
    assert_eq!(reached, Ok(format!("world {open}")));
    let refused = fetch(skep, vm, &format!("http://{closed}/")).await;
    assert!(is_refusal(&refused), "{closed}: {refused:?}");
}

#[test]
fn a_change_that_the_process_does_not_answer_is_applied_by_the_next_one() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vm = boot(&skep, json!("all")).await;
        begin_long_connection(&skep, vm).await;
        let stopped = recorded(skep.data_dir.path());
        stop(stopped);
        let policy = json!({"allow": ["api.test"]});
        assert_eq!(change(&skep, vm, &policy).await.ok(200)["egress"], policy);
        // A stopped process would go on, and copy what is forbidden now, once it is continued.
        eventually("the end of the process", async || is_gone(stopped)).await;
        eventually("the end of the connection", async || {
            skep.exec(vm, "test -e /root/long.over").await["exit_code"] == 0
        })
        .await;
        assert_policy(&skep, vm, &policy, ["api.test", "203.0.113.8"]).await;
    });
}

/// Takes the lock of the file of names, without which no process is started, as soon as the process that has it ends.
fn lock_names(skep: &Skep) -> std::thread::JoinHandle<File> {
    let names = File::open(skep.data_dir.path().join("keeper/egress-names")).unwrap();
    std::thread::spawn(move || {
        names.lock().unwrap();
        names
    })
}

#[test]
fn a_change_that_no_process_answers_fails_and_the_policy_from_before_applies() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let before = json!({"allow": ["api.test"]});
        let after = json!({"allow": ["203.0.113.8"]});
        let vm = boot(&skep, before.clone()).await;
        let stopped = recorded(skep.data_dir.path());
        let lock = lock_names(&skep);
        stop(stopped);
        change(&skep, vm, &after).await.refused(503, "swarm_unavailable");
        assert!(is_gone(stopped), "it may have the policy without having answered");
        drop(lock.join().unwrap());
        eventually("the next process", async || recorded(skep.data_dir.path()) != stopped).await;
        assert_policy(&skep, vm, &before, ["api.test", "203.0.113.8"]).await;
        // The control: the same change, where a process answers.
        change(&skep, vm, &after).await.ok(200);
        assert_policy(&skep, vm, &after, ["203.0.113.8", "api.test"]).await;
    });
}
