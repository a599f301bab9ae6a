//! What ends when the keeper is killed without a chance to clean up. `takeover` tests what survives.

mod thorough;

use std::{
    fs,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Output},
};

use reqwest::Method;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open},
};
use serde_json::{Value, json};

use crate::{
    harness::{Skep, binary, eventually, kill, output_of, remains_of, temp_dir},
    own_usr::without_qemu,
};

/// The server's log message for a VM that it did not find again.
const LOST: &str = "of an earlier start is lost";

/// A process, by a pidfd, which cannot refer to a later process with the same id.
struct PidFd(OwnedFd);

impl PidFd {
    fn pid(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        Self(pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    fn vmms(vms: &[Value]) -> Vec<Self> {
        vms.iter().map(|vm| Self::pid(u32::try_from(vm["pid"].as_u64().unwrap()).unwrap())).collect()
    }

    fn is_alive(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).unwrap() == 0
    }
}

/// Runs `skep doctor --clean`, without touching the images that all tests share.
fn clean(data_dir: &Path) -> Output {
    let images = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["doctor", "--clean", "--data-dir"]).arg(data_dir).arg("--image-dir").arg(images.path());
    output_of(&mut command)
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_that_end_while_no_server_runs_are_reported_lost_once() {
    let skep = Skep::start().await;
    let vms = skep.boot(3).await;
    let (vmms, server) = (PidFd::vmms(&vms), PidFd::pid(skep.server_pid().unwrap()));
    let id = |at: usize| vms[at]["id"].as_str().unwrap();
    let wreck = skep.crash();
    assert!(vmms.iter().all(PidFd::is_alive), "a VMM ended with the keeper: nothing is there to be lost");
    kill(u32::try_from(vms[0]["pid"].as_u64().unwrap()).unwrap());
    let path = wreck.path().join(format!("keeper/vms/{}.json", id(1)));
    let record = fs::read_to_string(&path).unwrap();
    let mut record: Value = serde_json::from_str(&record).unwrap();
    record["boot_id"] = json!("an earlier one");
    fs::write(&path, record.to_string()).unwrap();

    let skep = wreck.start().await;
    assert!(!server.is_alive() && !vmms[0].is_alive() && !vmms[1].is_alive() && vmms[2].is_alive());
    assert_eq!(skep.count().await, 1);
    for at in [0, 1] {
        let line = skep.log().lines().filter(|line| line.contains(id(at)) && line.contains(LOST)).count();
        assert_eq!((line, skep.log().matches(LOST).count()), (1, 2), "{}", skep.log());
        skep.get(&format!("/api/swarm/vm/{}", id(at))).await.refused(404, "unknown_vm");
    }
    let pid = skep.boot_one().await;
    assert_eq!(skep.output(pid, "echo alive").await, "alive");
    // The store has recorded their end, so it is not reported twice.
    let skep = skep.stop_and_leave_vms().start().await;
    assert!(!skep.log().contains(LOST), "{}", skep.log());
    assert_eq!(skep.count().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_run_vms_ends_those_of_before_and_says_so() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let vmms = PidFd::vmms(&vms);
    let folder = temp_dir();
    let skep = skep.crash().start_by(&without_qemu(folder.path()), |_| ()).await;
    let status = skep.get("/api/swarm/status").await.ok(200);
    assert_eq!((&status["engine"], &status["count"]), (&Value::Null, &json!(0)));
    assert!(!vmms.iter().any(PidFd::is_alive));
    assert_eq!(skep.log().matches(LOST).count(), 2, "{}", skep.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_does_not_outlive_its_keeper_for_a_request_under_way() {
    let skep = Skep::start().await;
    let pid = skep.boot_one().await;
    let path = format!("/api/swarm/vm/{pid}/exec");
    let call = skep.request(Method::POST, &path).json(&json!({"command": "sleep 600"}));
    let call = tokio::spawn(call.send());
    eventually("the command", async || skep.exec(pid, "pgrep -x sleep").await["exit_code"] == 0).await;
    let server = PidFd::pid(skep.server_pid().unwrap());
    let (mut unfinished, rest) = skep.begin_request().await;
    let wreck = skep.crash();
    // On a regular stop it would be answered.
    unfinished.send(rest).await;
    assert_eq!(unfinished.rest().await, "");
    eventually("the server's end", async || !server.is_alive()).await;
    assert!(call.await.unwrap().is_err());
    assert_eq!(clean(wreck.path()).status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_clears_a_wreck_and_leaves_a_server_that_runs_alone() {
    let skep = Skep::start().await;
    let vmms = PidFd::vmms(&skep.boot(2).await);
    let refused = clean(skep.data_dir.path());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains(&skep.pid().to_string()), "{message}");
    assert!(message.contains(skep.url.trim_start_matches("http://")), "{message}");
    assert_eq!(skep.count().await, 2);
    assert!(vmms.iter().all(PidFd::is_alive));

    let asleep = skep.boot(1).await.remove(0);
    skep.output(asleep["pid"].as_u64().unwrap(), "echo kept > /dev/shm/kept").await;
    let on_disk = format!("/api/swarm/vm/{}", asleep["id"].as_str().unwrap());
    skep.post(&format!("{on_disk}/pause"), &json!({"to": "disk"})).await.ok(200);
    let wreck = skep.crash();
    assert!(!remains_of(wreck.path()).is_empty(), "nothing is left to be cleared");
    let cleaned = clean(wreck.path());
    assert_eq!(cleaned.status.code(), Some(0), "{}", String::from_utf8_lossy(&cleaned.stderr));
    assert!(!vmms.iter().any(PidFd::is_alive));
    let left = remains_of(wreck.path());
    assert!(left.is_empty(), "left behind: {left:#?}");
    // A second run is no error. The data is kept.
    assert_eq!(clean(wreck.path()).status.code(), Some(0));
    let key = fs::read_to_string(wreck.path().join("admin.key")).unwrap();
    let skep = wreck.start().await;
    assert_eq!(skep.key, key.trim());
    // A VM on disk is data, too.
    let resumed = skep.post(&format!("{on_disk}/resume"), &json!({})).await.ok(200);
    assert_eq!(skep.output(resumed["pid"].as_u64().unwrap(), "cat /dev/shm/kept").await, "kept");
    skep.boot_one().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_closed_is_a_stop() {
    let skep = Skep::start().await;
    skep.boot_one().await;
    // The drop checks the rest.
    kill_process(Pid::from_raw(skep.pid().cast_signed()).unwrap(), Signal::HUP).unwrap();
    eventually("the end", async || skep.server_pid().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminals_signal_to_both_processes_ends_vms() {
    ends_vms(Signal::INT).await;
}

/// Sends a signal to keeper and server, as a terminal does.
async fn ends_vms(signal: Signal) {
    let skep = Skep::start().await;
    let vmms = PidFd::vmms(&skep.boot(1).await);
    // The server may have ended before the keeper gets its signal.
    kill_process_group(Pid::from_raw(skep.pid().cast_signed()).unwrap(), signal).unwrap();
    eventually("the end", async || !vmms.iter().any(PidFd::is_alive)).await;
    let dir = skep.stop();
    assert_eq!(remains_of(dir.path()), Vec::<String>::new(), "{signal:?}");
}
