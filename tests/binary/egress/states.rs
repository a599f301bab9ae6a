//! The policy of a VM that is copied or stored, of one that was on disk, and of one whose server has no egress.

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{binary::send, temp_dir};

use super::{
    OPTIONS, begin_long_connection, boot, fetch, is_refusal, is_silent, wait_for_connection_end, world::World,
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

async fn assert_closed(skep: &Skep, copy: &Value) {
    assert_eq!(copy["egress"], "none", "{copy}");
    assert!(is_silent(skep, pid_of(copy), "http://203.0.113.8/").await, "{copy}");
}

#[test]
fn a_copy_has_no_policy_and_a_vm_returns_from_disk_with_its_own() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vm = boot(&skep, json!({"allow": ["203.0.113.8"]})).await;
        let record = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200);
        let (path, address) = (path_of(&record), record["ip"].as_str().unwrap());
        let copy = fork(&skep, &record, &json!({})).await.remove(0);
        skep.post(&format!("{path}/snapshot"), &json!({"name": "stored"})).await.ok(201);
        let booted = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
        assert_eq!(admitted(&skep), [address]);
        tokio::join!(assert_closed(&skep, &copy), assert_closed(&skep, &booted["vms"][0]));

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
