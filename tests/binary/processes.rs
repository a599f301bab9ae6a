//! Two processes: the keeper with the privileges, the server without.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::harness::{Skep, eventually, status_field, step, temp_dir};

#[tokio::test]
async fn the_server_has_no_privilege_a_vmm_has_a_jail_and_the_keeper_starts_the_server_again() {
    let skep = Skep::start().await;
    step("the server is an ordinary user", async { the_server(&skep) }).await;
    step("the admin key is root's, the store the server's", async { the_data(&skep) }).await;
    let vms = skep.boot(2).await;
    step("a VMM lives in a jail of its own", async { vmms(&vms) }).await;
    step("the server of a restart is an ordinary user too", a_restart(&skep)).await;
    step("the keeper starts the server again", a_server_that_is_killed(&skep)).await;
}

fn the_server(skep: &Skep) {
    let server = skep.server_pid().unwrap();
    let uids = status_field(server, "Uid");
    assert!(uids.split_whitespace().all(|uid| uid != "0"), "{uids}");
    has_no_privilege(server);
}

fn has_no_privilege(server: u32) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status_field(server, set), "0000000000000000", "{set}");
    }
    assert_eq!(status_field(server, "NoNewPrivs"), "1");
}

#[tokio::test]
async fn a_server_runs_as_root_if_it_is_told_to_and_has_no_privilege_but_its_user() {
    // With this PATH the server finds none of the programs that VMs need, so it starts without a swarm.
    let skep = Skep::start_as(temp_dir(), |command| {
        command.args(["--user", "root"]).env("PATH", "/nonexistent");
    })
    .await;
    let server = skep.server_pid().unwrap();
    let uids = status_field(server, "Uid");
    assert!(uids.split_whitespace().all(|uid| uid == "0"), "{uids}");
    has_no_privilege(server);
    eventually("the warning", async || skep.log().contains("the server runs as root")).await;
}

fn the_data(skep: &Skep) {
    let server = skep.server_pid().unwrap();
    let uid: u32 = status_field(server, "Uid").split_whitespace().next().unwrap().parse().unwrap();
    let owner = |path: &str| {
        let metadata = fs::metadata(skep.data_dir.path().join(path)).unwrap();
        (metadata.uid(), metadata.permissions().mode() & 0o777)
    };
    assert_eq!(owner("admin.key"), (0, 0o600));
    assert_eq!(owner("keeper").0, 0);
    assert_eq!(owner("server").0, uid);
    assert_eq!(owner("workspaces").0, uid);
    assert!(!skep.log().contains(&skep.key), "the first start shows the key on a terminal only");
    assert!(skep.log().contains("admin.key"), "it names the key's file elsewhere: {}", skep.log());
}

async fn a_restart(skep: &Skep) {
    let first = skep.server_pid();
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    // The first server stays until the second one is ready.
    eventually("the second server", async || skep.server_pid().is_some_and(|pid| Some(pid) != first)).await;
    the_server(skep);
}

async fn a_server_that_is_killed(skep: &Skep) {
    let server = skep.server_pid().unwrap();
    let pid = Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
    pidfd_send_signal(pidfd_open(pid, PidfdFlags::empty()).unwrap(), Signal::KILL).unwrap();
    eventually("another server", async || skep.server_pid().is_some_and(|pid| pid != server)).await;
    eventually("its service", async || {
        let status = skep.request(reqwest::Method::GET, "/api/swarm/status").send().await;
        matches!(status, Ok(answer) if answer.status() == 200)
    })
    .await;
    skep.boot_one().await;
}

fn vmms(vms: &[Value]) {
    let pids: Vec<u32> = vms.iter().map(|vm| u32::try_from(vm["pid"].as_u64().unwrap()).unwrap()).collect();
    let uids: Vec<String> = pids.iter().map(|pid| status_field(*pid, "Uid")).collect();
    assert_ne!(uids[0], uids[1]);
    for pid in pids {
        assert!(
            status_field(pid, "Uid").split_whitespace().all(|uid| uid.parse::<u32>().unwrap() >= 0x7000_0000)
        );
        assert_eq!(status_field(pid, "CapBnd"), "0000000000000000");
        assert_eq!(status_field(pid, "NoNewPrivs"), "1");
        assert_eq!(status_field(pid, "Seccomp"), "2");
        for namespace in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).unwrap();
            assert_ne!(of(&pid.to_string()), of("self"), "{namespace}");
        }
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        let entries: Vec<_> = fs::read_dir(&root).unwrap().flatten().map(|entry| entry.file_name()).collect();
        for hidden in ["etc", "root", "var", "home", "run", "tmp", "sys"] {
            assert!(!entries.iter().any(|entry| entry == hidden), "{hidden} is in the jail: {entries:?}");
        }
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let devices = command.split('\0').filter(|word| *word == "-device").count();
        // Root, layer, four spare disks, network, serial bus and the agent's port.
        assert!(devices <= 9, "{devices} devices and a serial line");
        assert!(!command.contains("user,") && command.contains("elevateprivileges=deny"), "{command}");
    }
}
