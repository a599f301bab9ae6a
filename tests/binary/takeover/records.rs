//! VMs of an earlier release, whose records lack what was added since.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::assert_in_order;
use crate::harness::Skep;

/// Removes from the record of a VM what records of earlier releases lack.
fn make_earlier(record: &Path) {
    let text = fs::read_to_string(record).unwrap();
    let mut record_of_vm: Value = serde_json::from_str(&text).unwrap();
    let mut remove = |part: &str, names: &[&str]| {
        let part = record_of_vm.pointer_mut(part).unwrap().as_object_mut().unwrap();
        for name in names {
            assert!(part.remove(*name).is_some(), "{name} is not in {text}");
        }
    };
    remove("", &["reaches_api", "egress"]);
    remove("/vmm", &["inherited", "delta", "ram_sha256"]);
    fs::write(record, record_of_vm.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_with_records_of_an_earlier_release_run_on_and_are_forked() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let (id, pid) = (vm["id"].as_str().unwrap(), vm["pid"].as_u64().unwrap());
    skep.output(pid, "echo before > /root/file").await;
    let stopped = skep.stop_and_leave_vms();
    make_earlier(&stopped.path().join(format!("keeper/vms/{id}.json")));

    let skep = stopped.start().await;
    assert_eq!(skep.output(pid, "cat /root/file").await, "before");
    let forks = skep.post(&format!("/api/swarm/vm/{id}/fork"), &json!({})).await.ok(201);
    let fork = forks["vms"][0]["pid"].as_u64().unwrap();
    assert_eq!(skep.output(fork, "cat /root/file").await, "before");
    assert_in_order(&skep).await;
}
