//! Policies in all states of a VM, while the operator closes networks, and while processes that apply them are killed or do not
//! answer.

mod attacks;
mod changes;
mod floods;
mod forged;
mod life;
mod limits;
mod peers;
mod states;
mod tools;

use std::fs;

use reqwest::Method;
use serde_json::json;
use skep_harness::{binary::send, eventually, process::kill, temp_dir};

use super::{OPTIONS, assert_policies, boot, fetch, is_refusal, is_silent, policy, world::World};
use crate::harness::Skep;

#[test]
fn the_operator_and_the_network_of_the_vms_close_what_all_opens() {
    World::run(async || {
        let deny = ["--egress-deny", "other.test,203.0.113.8"];
        let skep = Skep::start_on(temp_dir(), &[&OPTIONS[..], &deny].concat()).await;
        let [vm, sibling] = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        let narrowed = boot(&skep, json!("all")).await;
        for denied in [
            "http://other.test/",
            "http://203.0.113.8/",
            // Behind a name and an address that are allowed.
            "-H 'Host: other.test' http://api.test/",
            "-H 'Host: other.test' http://203.0.113.7/",
        ] {
            let refused = fetch(&skep, vm, denied).await;
            assert!(is_refusal(&refused), "{denied}: {refused:?}");
        }
        let reasons = skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200)["tries"].to_string();
        assert!(reasons.contains("the operator forbids it"), "{reasons}");
        assert!(reasons.contains("\\\"other.test\\\", which the operator forbids"), "{reasons}");
        let world = |host: &str| Ok(format!("world {host}"));
        assert_eq!(fetch(&skep, vm, "http://api.test/").await, world("api.test"));
        assert_eq!(fetch(&skep, vm, "http://203.0.113.7/").await, world("203.0.113.7"));

        assert_siblings_are_closed(&skep, vm, sibling).await;

        let path = format!("/api/swarm/vm/{vm}");
        let change = json!({"egress": {"allow": ["api.test"]}});
        send(skep.request(Method::PATCH, &path).json(&change)).await.ok(200);
        skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
        skep.post(&format!("{path}/resume"), &json!({})).await.ok(200);
        assert_eq!(fetch(&skep, vm, "http://api.test/").await, world("api.test"));
        assert!(is_refusal(&fetch(&skep, vm, "http://203.0.113.7/").await));

        let skep = skep.stop_and_leave_vms().start_with(&[&OPTIONS[..], &["--egress", "off"]].concat()).await;
        assert!(is_silent(&skep, vm, "http://api.test/").await);
        let refused = skep.post("/api/swarm/boot", &json!({"egress": "all"})).await;
        refused.refused(503, "swarm_unavailable");
        // A policy that is taken away meanwhile is not applied later.
        let path = format!("/api/swarm/vm/{narrowed}");
        send(skep.request(Method::PATCH, &path).json(&json!({"egress": "none"}))).await.ok(200);
        // The controls: without these settings the same is reached.
        let skep = skep.stop_and_leave_vms().start_with(&OPTIONS).await;
        assert!(is_silent(&skep, narrowed, "http://api.test/").await);
        assert_eq!(fetch(&skep, vm, "http://api.test/").await, world("api.test"));
        assert_eq!(fetch(&skep, sibling, "http://203.0.113.8/").await, world("203.0.113.8"));
        assert_eq!(fetch(&skep, sibling, "http://other.test/").await, world("other.test"));
    });
}

/// Asserts that a VM reaches neither a server in another VM nor the proxy's own port.
async fn assert_siblings_are_closed(skep: &Skep, vm: u64, sibling: u64) {
    let serve = "cd /etc && (python3 -m http.server 8000 > /dev/null 2>&1 &); hostname -I | cut -d ' ' -f 1";
    let target = format!("http://{}:8000/hostname", skep.output(sibling, serve).await.trim());
    eventually("the server in the sibling", async || fetch(skep, sibling, &target).await.is_ok()).await;
    assert!(is_silent(skep, vm, &target).await, "{target}");
    let bridge = skep.output(vm, "grep nameserver /etc/resolv.conf | cut -d ' ' -f 2").await;
    let reached = fetch(skep, vm, &format!("-m 5 http://{}:7701/", bridge.trim())).await;
    // It times out, rather than being refused by the proxy: the packet filter drops it.
    assert_eq!(reached, Err(28));
}

#[test]
fn policies_outlive_the_processes_that_apply_them() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vms =
            [boot(&skep, policy()).await, boot(&skep, json!("all")).await, boot(&skep, json!("none")).await];
        let process = egress_process(&skep).unwrap();
        assert_confined(process);
        let address =
            async || skep.output(vms[0], "getent ahostsv4 api.test | head -n 1 | cut -d ' ' -f 1").await;
        let before = address().await;
        kill(process);
        assert_policies(&skep, vms).await;
        assert_ne!(egress_process(&skep), Some(process));
        assert_eq!(address().await, before, "an address means the same name");

        let server = skep.server_pid().unwrap();
        kill(server);
        skep.wait_for_server_after(server).await;
        assert_policies(&skep, vms).await;

        let crashed = skep.crash();
        let skep = crashed.start_with(&OPTIONS).await;
        assert_policies(&skep, vms).await;
    });
}

/// The egress process: a child of the keeper, which inherits it from the stage.
fn egress_process(skep: &Skep) -> Option<u32> {
    let keeper = skep.pid();
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    let is_egress = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|line| line.contains("egress-process"))
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_egress)
}

/// Asserts that a process has no privilege, a filter of system calls, a user and a control group of its own.
fn assert_confined(pid: u32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("CapEff:"), "0000000000000000", "{status}");
    assert_eq!(field("CapBnd:"), "0000000000000000", "{status}");
    assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".to_owned(), "1".to_owned()), "{status}");
    let uid: u32 = field("Uid:").split_whitespace().next().unwrap().parse().unwrap();
    assert!(uid > 1 << 16, "{uid}");
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(groups.contains("/egress"), "{groups}");
    // Version 1 has a hierarchy for memory alone.
    let paths = groups.lines().filter_map(|line| line.rsplit_once(':'));
    let limits: Vec<String> = paths
        .flat_map(|(_, path)| {
            ["/sys/fs/cgroup{}/memory.max", "/sys/fs/cgroup/memory{}/memory.limit_in_bytes"]
                .map(|file| file.replace("{}", path))
        })
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    assert!(limits.iter().any(|limit| limit.trim() == (256_u64 << 20).to_string()), "{limits:?}");
}
