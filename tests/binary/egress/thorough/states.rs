//! The policies of VMs that are parked, copied and started again.

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{binary::send, eventually, temp_dir};

use crate::{
    copies::{fork, path_of, pid_of},
    egress::{OPTIONS, boot, fetch, is_refusal, is_silent, policy, states::admitted, world::World},
    harness::Skep,
};

/// Asserts that a VM reaches what [`policy`] allows and nothing else.
async fn assert_listed(skep: &Skep, vm: u64) {
    assert_eq!(fetch(skep, vm, "http://api.test/").await.as_deref(), Ok("world api.test"));
    for other in ["http://other.test/", "http://203.0.113.7/", "http://priv.test/"] {
        let refused = fetch(skep, vm, other).await;
        assert!(is_refusal(&refused), "{other}: {refused:?}");
    }
}

async fn ready(skep: &Skep) -> u64 {
    let status = skep.get("/api/swarm/status").await.ok(200);
    status["pool"]["base"]["ready"].as_u64().unwrap_or(0)
}

#[test]
fn a_policy_is_that_of_one_vm_in_all_of_its_states() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &[&OPTIONS[..], &["--pool-size", "1"]].concat()).await;
        eventually("a parked VM", async || ready(&skep).await == 1).await;
        assert_eq!(admitted(&skep), [""; 0], "a parked VM has no policy");
        let vm = boot(&skep, policy()).await;
        let record = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200);
        assert_eq!(record["boot"]["source"], "pool", "{record}");
        eventually("the next parked VM", async || ready(&skep).await == 1).await;
        assert_eq!(admitted(&skep), [record["ip"].as_str().unwrap()]);
        assert_listed(&skep, vm).await;

        // Its copy knows the addresses of the names, whether it may reach them or not.
        let copy = fork(&skep, &record, &json!({"egress": "none"})).await.remove(0);
        for target in ["http://api.test/", "http://203.0.113.8/"] {
            assert!(is_silent(&skep, pid_of(&copy), target).await, "{target}");
        }
        let change = json!({"egress": policy()});
        send(skep.request(Method::PATCH, &path_of(&copy)).json(&change)).await.ok(200);
        assert_listed(&skep, pid_of(&copy)).await;
        skep.delete(&path_of(&copy)).await.ok(200);

        assert_returns_with_its_policy(&skep, &record).await;
        assert_eq!(admitted(&skep), [record["ip"].as_str().unwrap()], "VMs that ended are removed");
    });
}

/// Asserts that a VM has its policy after a pause in memory and on disk, and that a change while it is on disk applies.
async fn assert_returns_with_its_policy(skep: &Skep, record: &Value) {
    let path = path_of(record);
    let resume = async || {
        let resumed = send(skep.request(Method::POST, &format!("{path}/resume"))).await.ok(200);
        pid_of(&resumed)
    };
    skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
    assert_listed(skep, resume().await).await;
    skep.post(&format!("{path}/pause"), &json!({"to": "disk"})).await.ok(200);
    assert_eq!(admitted(skep), [""; 0], "a VM on disk has no address");
    assert_listed(skep, resume().await).await;
    skep.post(&format!("{path}/pause"), &json!({"to": "disk"})).await.ok(200);
    let change = json!({"egress": {"allow": ["203.0.113.7"]}});
    send(skep.request(Method::PATCH, &path).json(&change)).await.ok(200);
    let vm = resume().await;
    assert_eq!(fetch(skep, vm, "http://203.0.113.7/").await.as_deref(), Ok("world 203.0.113.7"));
    assert!(is_refusal(&fetch(skep, vm, "http://api.test/").await));
}
