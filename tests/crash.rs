//! The keeper killed, with no chance to clear anything away.

use std::{
    fs,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use reqwest::Method;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use serde_json::{Value, json};

use crate::harness::{Skep, binary, ended, eventually, remains_of};

/// What the server says of a VM that an earlier start left.
const LOST: &str = "was lost: an earlier start left it";

/// A process that is told from a later one with its number.
struct Watched(OwnedFd);

impl Watched {
    fn pid(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        Self(pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    fn vmms(vms: &[Value]) -> Vec<Self> {
        vms.iter().map(|vm| Self::pid(u32::try_from(vm["pid"].as_u64().unwrap()).unwrap())).collect()
    }

    fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).unwrap() == 0
    }
}

/// `skep doctor --clean`, far from the images that all tests share.
fn clean(data_dir: &Path) -> Output {
    let images = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["doctor", "--clean", "--data-dir"]).arg(data_dir).arg("--image-dir").arg(images.path());
    ended(&mut command)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_start_clears_what_a_killed_keeper_left() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let (vmms, server) = (Watched::vmms(&vms), Watched::pid(skep.server_pid().unwrap()));
    let dir = skep.crash();
    assert!(vmms.iter().all(Watched::lives), "a VMM ended with the keeper: nothing is left to be cleared");

    let skep = Skep::start_on(dir, &[]).await;
    assert!(!server.lives() && !vmms.iter().any(Watched::lives));
    assert_eq!(skep.count().await, 0);
    for vm in &vms {
        let line = skep.log().lines().filter(|line| line.contains(vm["id"].as_str().unwrap())).count();
        assert_eq!((line, skep.log().matches(LOST).count()), (1, 2), "{}", skep.log());
    }
    let pid = skep.boot_one().await;
    assert_eq!(skep.output(pid, "echo alive").await, "alive");
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    // The store knows of their end: it is not told twice.
    let skep = Skep::start_on(skep.stop(), &[]).await;
    assert!(!skep.log().contains(LOST), "{}", skep.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_does_not_outlive_its_keeper_for_a_request_under_way() {
    let skep = Skep::start().await;
    let pid = skep.boot_one().await;
    let path = format!("/api/swarm/vm/{pid}/exec");
    let call = skep.request(Method::POST, &path).json(&json!({"command": "sleep 600"}));
    let call = tokio::spawn(call.send());
    eventually("the command", async || skep.exec(pid, "pgrep -x sleep").await["exit_code"] == 0).await;
    let server = Watched::pid(skep.server_pid().unwrap());
    let begun = Instant::now();
    let dir = skep.crash();
    eventually("the server's end", async || !server.lives()).await;
    // It gives requests under way 30 seconds when it is asked to end.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(call.await.unwrap().is_err());
    assert_eq!(clean(dir.path()).status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_clears_a_wreck_and_leaves_a_server_that_runs_alone() {
    let skep = Skep::start().await;
    let vmms = Watched::vmms(&skep.boot(2).await);
    let refused = clean(skep.data_dir.path());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&skep.pid().to_string()), "{said}");
    assert!(said.contains(skep.url.trim_start_matches("http://")), "{said}");
    assert_eq!(skep.count().await, 2);
    assert!(vmms.iter().all(Watched::lives));

    let dir = skep.crash();
    assert!(!remains_of(dir.path()).is_empty(), "nothing is left to be cleared");
    let cleaned = clean(dir.path());
    assert_eq!(cleaned.status.code(), Some(0), "{}", String::from_utf8_lossy(&cleaned.stderr));
    assert!(!vmms.iter().any(Watched::lives));
    let left = remains_of(dir.path());
    assert!(left.is_empty(), "left behind: {left:#?}");
    // Once more: what is gone is no error. The data stays.
    assert_eq!(clean(dir.path()).status.code(), Some(0));
    let key = fs::read_to_string(dir.path().join("admin.key")).unwrap();
    let skep = Skep::start_on(dir, &[]).await;
    assert_eq!(skep.key, key.trim());
    skep.boot_one().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_closed_is_a_stop() {
    let skep = Skep::start().await;
    skep.boot_one().await;
    // Its drop sees to the rest.
    kill_process(Pid::from_raw(skep.pid().cast_signed()).unwrap(), Signal::HUP).unwrap();
    eventually("the end", async || skep.server_pid().is_none()).await;
}
