//! The policy of a VM that is copied or stored, of one that was on disk, and of one whose server has no egress.

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{binary::send, temp_dir};

use super::{
    OPTIONS, begin_long_connection, boot, fetch, is_refusal, is_silent, set_default_of_account,
    wait_for_connection_end, world::World,
};
use crate::{
    copies::{fork, path_of, pid_of},
    harness::Skep,
    spoofing::in_namespace,
};

/// The addresses whose connections the packet filter lets through.
pub(super) fn admitted(skep: &Skep) -> Vec<String> {
    let listed = in_namespace(skep, "nft --json list set inet skep egress");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let sets = listed["nftables"].as_array().unwrap();
    let elements = sets.iter().find_map(|entry| entry["set"]["elem"].as_array());
    elements.into_iter().flatten().map(|address| address.as_str().unwrap().to_owned()).collect()
}

/// Asserts that a copy reaches what its VM may reach, and not what the account's default allows.
async fn assert_listed(skep: &Skep, copy: &Value) {
    assert_eq!(copy["egress"], listed(), "{copy}");
    let vm = pid_of(copy);
    assert_eq!(fetch(skep, vm, "http://203.0.113.8/").await.as_deref(), Ok("world 203.0.113.8"), "{copy}");
    assert!(is_refusal(&fetch(skep, vm, "http://203.0.113.7/").await), "{copy}");
}

/// The control: the account's default allows it, and the boot of a copy can.
async fn assert_default_is_wider(skep: &Skep, vm: &Value) {
    let booted = skep.post("/api/swarm/boot", &json!({})).await.ok(201)["vms"][0].clone();
    let copy = fork(skep, vm, &json!({"egress": "all"})).await.remove(0);
    for vm in [booted, copy] {
        let found = fetch(skep, pid_of(&vm), "http://203.0.113.7/").await;
        assert_eq!(found.as_deref(), Ok("world 203.0.113.7"), "{vm}");
        skep.delete(&path_of(&vm)).await.ok(200);
    }
}

fn listed() -> Value {
    json!({"allow": ["203.0.113.8"]})
}

#[test]
fn a_copy_has_the_policy_of_its_vm_and_a_vm_returns_from_disk_with_its_own() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        set_default_of_account(&skep, &json!("all")).await;
        let vm = boot(&skep, listed()).await;
        let record = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200);
        let (path, address) = (path_of(&record), record["ip"].as_str().unwrap());
        let copy = fork(&skep, &record, &json!({})).await.remove(0);
        skep.post(&format!("{path}/snapshot"), &json!({"name": "stored"})).await.ok(201);
        let stored = skep.get("/api/templates/stored").await.ok(200);
        assert_eq!(stored["egress"], listed(), "{stored}");
        let booted = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
        let booted = &booted["vms"][0];
        tokio::join!(assert_listed(&skep, &copy), assert_listed(&skep, booted));
        assert_default_is_wider(&skep, &record).await;
        skep.delete(&path_of(&copy)).await.ok(200);
        skep.delete(&path_of(booted)).await.ok(200);
        assert_eq!(admitted(&skep), [address]);

        skep.post(&format!("{path}/pause"), &json!({"to": "disk"})).await.ok(200);
        assert_eq!(admitted(&skep), [""; 0], "a VM on disk has no address");
        let resumed = send(skep.request(Method::POST, &format!("{path}/resume"))).await.ok(200);
        let vm = pid_of(&resumed);
        assert_eq!(fetch(&skep, vm, "http://203.0.113.8/").await.as_deref(), Ok("world 203.0.113.8"));
        assert!(is_refusal(&fetch(&skep, vm, "http://203.0.113.7/").await));
        assert_off_ends_all(skep, vm).await;
    });
}

/// Asserts that `--egress off` ends open connections and refuses policies. The control: the VM has a connection before it.
async fn assert_off_ends_all(skep: Skep, vm: u64) {
    begin_long_connection(&skep, vm).await;
    let options = [&OPTIONS[..], &["--egress", "off"]].concat();
    let skep = skep.stop_and_leave_vms().start_with(&options).await;
    wait_for_connection_end(&skep, vm, "long").await;
    assert!(is_silent(&skep, vm, "http://203.0.113.8/").await);
    let refused = skep.post("/api/swarm/boot", &json!({"egress": "all"})).await;
    refused.refused(503, "swarm_unavailable");
}
