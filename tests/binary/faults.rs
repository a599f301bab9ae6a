//! Failures of VMMs, bakes and disks, which must leave nothing behind.

use std::{path::Path, process::Command};

use reqwest::Method;
use serde_json::json;

use crate::{
    harness::{Skep, eventually, kill, send, step, temp_dir},
    takeover::Streamed,
};

#[tokio::test]
async fn the_agent_cannot_be_killed_from_inside_and_a_vm_that_ends_is_gone_with_its_reason() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let [one, other] = [0, 1].map(|at| vms[at]["pid"].as_u64().unwrap());
    step("signals to the agent", signals_to_the_agent(&skep, one)).await;
    step("a guest that does not do what it is asked", no_freeze(&skep, one)).await;
    // The log has each of these reasons once.
    step("a guest that powers itself off", poweroff(&skep, one)).await;
    step("a VMM that is killed during a command", a_kill_during_a_command(&skep, other)).await;
}

/// The agent freezes programs by control groups, over which root in the guest can mount another file system. The fork is then
/// refused, and the VM keeps running.
async fn no_freeze(skep: &Skep, pid: u64) {
    let command = "mount -t tmpfs covered /sys/fs/cgroup && echo covered
        while [ ! -e /dev/shm/enough ]; do sleep 0.1; done; umount -l /sys/fs/cgroup";
    let mut cover = Streamed::begin(skep, pid, command).await;
    cover.wait_for_output("covered\n".len()).await;
    let refused = skep.post(&format!("/api/swarm/vm/{pid}/fork"), &json!({})).await;
    assert!(refused.refused(504, "guest_timeout").contains("freeze all programs"), "{refused:?}");
    let enough = json!({"vm": pid, "path": "/dev/shm/enough", "content": ""});
    skep.post("/api/files/write", &enough).await.ok(201);
    let (kind, end) = cover.rest().await.unwrap();
    assert_eq!((kind.as_str(), &end["exit_code"]), ("exit", &json!(0)), "{end}");
    assert_eq!(skep.output(pid, "echo alive").await, "alive");
}

async fn signals_to_the_agent(skep: &Skep, pid: u64) {
    skep.exec(pid, "kill -9 1; kill -TERM 1; kill -ABRT 1").await;
    assert_eq!(skep.output(pid, "echo alive").await, "alive");
}

async fn poweroff(skep: &Skep, pid: u64) {
    let answer =
        skep.post(&format!("/api/swarm/vm/{pid}/exec"), &json!({"command": "poweroff; sleep 60"})).await;
    answer.refused(409, "vm_ended");
    skep.wait_for_end_of(pid).await;
    eventually("the reason", async || skep.log().contains("poweroff")).await;
}

async fn a_kill_during_a_command(skep: &Skep, pid: u64) {
    let call = skep
        .request(Method::POST, &format!("/api/swarm/vm/{pid}/exec"))
        .json(&json!({"command": "sleep 600"}));
    let call = tokio::spawn(send(call));
    eventually("the command", async || {
        !skep.exec(pid, "pgrep -x sleep").await["stdout"].as_str().unwrap().is_empty()
    })
    .await;
    kill(u32::try_from(pid).unwrap());
    call.await.unwrap().refused(409, "vm_ended");
    skep.wait_for_end_of(pid).await;
    eventually("the reason", async || skep.log().contains("crashed")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vmm_killed_during_a_boot_is_replaced_by_another() {
    let skep = Skep::start().await;
    let mut replaced = None;
    eventually("a VMM that is killed before its guest is ready", async || {
        replaced = boot_with_a_kill(&skep).await;
        replaced.is_some()
    })
    .await;
    let pids = replaced.unwrap();
    assert_eq!(pids.len(), 6, "{pids:?}");
    for pid in pids {
        assert_eq!(skep.exec(pid, "echo here").await["stdout"], "here\n");
    }
}

/// Boots VMs while a VMM of them is killed, and returns the process ids of all. `None` if the kill was late: where the guest was
/// ready, the boot fails as a whole, and where all were, that VM has ended since.
async fn boot_with_a_kill(skep: &Skep) -> Option<Vec<u64>> {
    let boot = tokio::spawn(send(skep.request(Method::POST, "/api/swarm/boot").json(&json!({"count": 6}))));
    let mut vmm = None;
    eventually("a VMM", async || {
        vmm = vmm_of(skep);
        vmm.is_some()
    })
    .await;
    let killed = vmm.unwrap();
    kill(u32::try_from(killed).unwrap());
    let answer = boot.await.unwrap();
    if answer.status != 201 {
        answer.refused(503, "boot_failed");
        return None;
    }
    let booted = answer.ok(201);
    let pids: Vec<u64> =
        booted["vms"].as_array().unwrap().iter().map(|vm| vm["pid"].as_u64().unwrap()).collect();
    if pids.contains(&killed) {
        skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
        return None;
    }
    Some(pids)
}

/// The process id of a VMM of this server, by its cgroup. Of several the newest one, whose boot is the last to be over.
fn vmm_of(skep: &Skep) -> Option<u64> {
    let name = skep.namespace();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_vmm = |pid: &u64| {
        let read = |file: &str| std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(file));
        let groups = read("cgroup").unwrap_or_default();
        groups.contains(&name) && read("cmdline").unwrap_or_default().contains("qemu")
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_vmm).max()
}

#[tokio::test]
async fn a_bake_on_a_full_disk_says_so_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Mounted::small(dir.path());
    let output = Command::new(crate::harness::binary())
        .arg("bake")
        .arg("--image-dir")
        .arg(dir.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.to_lowercase().contains("no space left"), "{message}");
    let left = std::fs::read_dir(dir.path().join("base")).into_iter().flatten().flatten().count();
    assert_eq!(left, 0, "a template of a bake that failed");
    drop(mounted);
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_boots_no_vm_and_says_so() {
    let dir = temp_dir();
    let mounted_at = dir.path().to_owned();
    let mounted = Mounted::small(&mounted_at);
    let skep = Skep::start_on(dir, &["--max-vms", "4"]).await;
    let answer = skep.post("/api/swarm/boot", &json!({})).await;
    let message = answer.refused(503, "no_capacity");
    assert!(message.contains("no room for another VM"), "{message}");
    // What the machine has is the operator's to know.
    assert!(skep.log().contains("MiB of disk are free"), "{}", skep.log());
    let health = skep.health().await;
    let checks = &health["checks"];
    assert!(checks["disk"].as_str().unwrap().contains("MiB are free"), "{health}");
    assert_eq!((&health["status"], &checks["engine"]), (&json!("degraded"), &json!("ok")), "{health}");
    assert_eq!(skep.count().await, 0);
    let dir = skep.stop();
    drop(mounted);
    drop(dir);
}

/// A file system of 60 MB on a folder, until dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn small(path: &'a Path) -> Self {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("skep-test", path, "tmpfs", flags, c"size=60m,mode=755").unwrap();
        Self(path)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
