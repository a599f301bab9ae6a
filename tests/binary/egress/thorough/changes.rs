//! Changes of a policy while the egress process does not answer, and where the change cannot be recorded or the packet filter
//! refuses it.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::PathBuf,
};

use serde_json::{Value, json};
use skep_harness::{
    eventually,
    process::{is_gone, stop},
    temp_dir,
};

use crate::{
    egress::{
        OPTIONS, begin_long_connection, boot, change, fetch, is_refusal, recorded, wait_for_connection_end,
        world::World,
    },
    harness::Skep,
    spoofing::in_namespace,
};

/// The keeper's record of a VM.
async fn record_path(skep: &Skep, vm: u64) -> PathBuf {
    let id = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["id"].as_str().unwrap().to_owned();
    skep.data_dir.path().join(format!("keeper/vms/{id}.json"))
}

/// The policy that the next keeper applies.
async fn on_record(skep: &Skep, vm: u64) -> Value {
    let record = fs::read(record_path(skep, vm).await).unwrap();
    serde_json::from_slice::<Value>(&record).unwrap()["egress"].clone()
}

/// Asserts that the policy of a VM allows the first one of these hosts and not the second one.
async fn assert_policy(skep: &Skep, vm: u64, policy: &Value, [open, closed]: [&str; 2]) {
    assert_eq!(&skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["egress"], policy);
    let report = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200);
    assert_eq!(&report["policy"], policy, "{report}");
    let reached = fetch(skep, vm, &format!("http://{open}/")).await;
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
        wait_for_connection_end(&skep, vm, "long").await;
        assert_policy(&skep, vm, &policy, ["api.test", "203.0.113.8"]).await;
    });
}

/// Replaces the file of names by a locked copy: no process is started without that lock. The keeper tries the lock of the file
/// itself soon after the process that has it ends, and could take it before the test.
fn lock_names(skep: &Skep) -> File {
    let path = skep.data_dir.path().join("keeper/egress-names.jsonl");
    let copy = path.with_extension("copy");
    fs::copy(&path, &copy).unwrap();
    let names = File::open(&copy).unwrap();
    names.lock().unwrap();
    fs::rename(&copy, &path).unwrap();
    names
}

/// The policy of the VM.
fn before() -> Value {
    json!({"allow": ["api.test"]})
}

/// The policy of the change.
fn after() -> Value {
    json!({"allow": ["203.0.113.8"]})
}

async fn boot_with_policy() -> (Skep, u64) {
    let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let vm = boot(&skep, before()).await;
    (skep, vm)
}

/// Asserts that the policy from before applies after a refused change. The control: the same change has its effect once
/// nothing stands in its way.
async fn assert_unchanged_and_changeable(skep: &Skep, vm: u64) {
    assert_policy(skep, vm, &before(), ["api.test", "203.0.113.8"]).await;
    change(skep, vm, &after()).await.ok(200);
    assert_policy(skep, vm, &after(), ["203.0.113.8", "api.test"]).await;
}

#[test]
fn a_change_that_no_process_answers_fails_and_the_policy_from_before_applies() {
    World::run(async || {
        let (skep, vm) = boot_with_policy().await;
        let stopped = recorded(skep.data_dir.path());
        stop(stopped);
        let lock = lock_names(&skep);
        change(&skep, vm, &after()).await.refused(503, "swarm_unavailable");
        assert_eq!(on_record(&skep, vm).await, before(), "the next keeper reads it");
        assert!(is_gone(stopped), "it may have the policy without having answered");
        drop(lock);
        eventually("the next process", async || recorded(skep.data_dir.path()) != stopped).await;
        assert_unchanged_and_changeable(&skep, vm).await;
    });
}

#[test]
fn a_change_that_cannot_be_recorded_fails_and_the_policy_from_before_applies() {
    World::run(async || {
        let (skep, vm) = boot_with_policy().await;
        // The keeper writes a record under this name first, and finds the disk full.
        let new = record_path(&skep, vm).await.with_extension("new");
        symlink("/dev/full", &new).unwrap();
        change(&skep, vm, &after()).await.refused(503, "no_capacity");
        assert!(fs::symlink_metadata(&new).is_err(), "the keeper has not written the record");
        assert_unchanged_and_changeable(&skep, vm).await;
    });
}

#[test]
fn a_change_that_the_packet_filter_refuses_fails_and_the_policy_from_before_applies() {
    World::run(async || {
        let (skep, vm) = boot_with_policy().await;
        let folder = temp_dir();
        let rules = folder.path().join("rules");
        let rules = rules.display();
        in_namespace(&skep, &format!("nft list table inet skep > {rules}"));
        // A set of another type takes no address of a VM.
        let other =
            "delete table inet skep; add table inet skep; add set inet skep egress { type ipv6_addr; }";
        in_namespace(&skep, &format!("nft '{other}'"));
        change(&skep, vm, &after()).await.refused(503, "swarm_unavailable");
        assert_eq!(on_record(&skep, vm).await, before(), "the next keeper reads it");
        in_namespace(&skep, &format!("nft delete table inet skep && nft -f {rules}"));
        assert_unchanged_and_changeable(&skep, vm).await;
    });
}
