//! The systemd unit: a server has VMs without the capabilities that it removes. Its other limits are not applied here.

use std::fs;

use serde_json::json;

use crate::{
    copies::{path_of, pid_of},
    harness::{Skep, binary, status_field, temp_dir, write_program},
};

const UNIT: &str = include_str!("../../packaging/skep.service");

/// The capabilities that the unit takes away, as setpriv(1) names them.
fn removed_capabilities() -> Vec<String> {
    let lines = UNIT.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=~"));
    let names = lines.flat_map(str::split_whitespace);
    names.map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase()).collect()
}

/// How many of the capabilities of this kernel are not in the bounding set of a process.
fn missing_capabilities(pid: u32) -> usize {
    let last: u32 = fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap().trim().parse().unwrap();
    let bounding_set = u64::from_str_radix(&status_field(pid, "CapBnd"), 16).unwrap();
    (last + 1 - bounding_set.count_ones()) as usize
}

#[tokio::test]
async fn a_server_without_the_capabilities_that_the_unit_removes_runs_copies_and_pauses_vms() {
    // The keeper alone notifies systemd.
    for setting in ["NoNewPrivileges=yes", "NotifyAccess=main"] {
        assert!(UNIT.lines().any(|line| line == setting), "{setting}");
    }
    let options: Vec<String> = removed_capabilities().iter().map(|name| format!("-{name}")).collect();
    let folder = temp_dir();
    let program = folder.path().join("skep");
    let script = format!(
        "#!/bin/sh\nexec setpriv --no-new-privs --bounding-set={} '{}' \"$@\"\n",
        options.join(","),
        binary().display()
    );
    write_program(&program, &script);
    let skep = Skep::start_by(&program, temp_dir(), |_| ()).await;
    assert!(missing_capabilities(skep.pid()) >= options.len());

    let vm = skep.boot(1).await.remove(0);
    assert_eq!(skep.output(pid_of(&vm), "echo one > /root/file; cat /root/file").await, "one");
    let fork = skep.post(&format!("{}/fork", path_of(&vm)), &json!({})).await.ok(201)["vms"][0].clone();
    assert_eq!(skep.output(pid_of(&fork), "cat /root/file").await, "one");
    skep.post(&format!("{}/pause", path_of(&fork)), &json!({"to": "disk"})).await.ok(200);
    let fork = skep.post(&format!("{}/resume", path_of(&fork)), &json!({})).await.ok(200);
    assert_eq!(skep.output(pid_of(&fork), "cat /root/file").await, "one");
    let command = json!({"command": "id -un; git --version"});
    assert_eq!(skep.post("/api/exec", &command).await.ok(200)["exit_code"], 0);
    skep.stop();
}
