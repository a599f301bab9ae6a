//! Policies in all states of a VM, while the operator ends egress, and while processes that apply them are killed or do not
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

use serde_json::json;
use skep_harness::{process::kill, temp_dir};

use super::{OPTIONS, assert_policies, boot, change, fetch, is_silent, policy, world::World};
use crate::harness::Skep;

#[test]
fn a_policy_that_is_taken_away_while_egress_is_off_does_not_return() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let [kept, taken] = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        let options = [&OPTIONS[..], &["--egress", "off"]].concat();
        let skep = skep.stop_and_leave_vms().start_with(&options).await;
        change(&skep, taken, &json!("none")).await.ok(200);
        let skep = skep.stop_and_leave_vms().start_with(&OPTIONS).await;
        assert!(is_silent(&skep, taken, "http://api.test/").await);
        // The control: a policy that did not change while egress was off applies again.
        assert_eq!(fetch(&skep, kept, "http://api.test/").await.as_deref(), Ok("world api.test"));
    });
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
