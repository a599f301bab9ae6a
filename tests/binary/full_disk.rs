//! A full disk under the store: it is reported, the server survives, and recovers when there is room again.

mod files;
mod records;
mod templates;
mod thorough;
mod tickets;

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};
use serde_json::json;

use crate::{
    harness::{Answer, Skep, eventually, temp_dir},
    steps::OPTIONS,
};

/// Room for the store, and little else.
const SIZE: &std::ffi::CStr = c"size=4m,mode=755";
/// The same for files, whose user is not root.
const SIZE_FOR_ALL: &std::ffi::CStr = c"size=4m,mode=777";
/// So many refusals in a row show that the disk is full: what a single one refused may have shared its commit with other writes.
const REFUSALS: u32 = 3;

/// A server whose store lies on a small disk of its own, which goes with it.
async fn on_a_small_disk() -> (Skep, PathBuf) {
    with_a_small_disk("server", SIZE).await
}

/// A server of whose data this folder lies on a small disk of its own.
async fn with_a_small_disk(below: &str, options: &'static std::ffi::CStr) -> (Skep, PathBuf) {
    let (skep, mut folders) = with_small_disks(&[below], options).await;
    (skep, folders.remove(0))
}

/// A server of whose data each of these folders lies on a small disk of its own. The paths are those for this process.
async fn with_small_disks(below: &[&str], options: &'static std::ffi::CStr) -> (Skep, Vec<PathBuf>) {
    let data_dir = temp_dir();
    let folders: Vec<PathBuf> = below.iter().map(|below| data_dir.path().join(below)).collect();
    for folder in &folders {
        fs::create_dir_all(folder).unwrap();
    }
    let places = folders.clone();
    let skep = Skep::start_as(data_dir, move |command| {
        let prepare = move || {
            // SAFETY: this process has one thread and becomes another program at once; only its mounts are its own.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            for place in &places {
                mount("skep-test", place, "tmpfs", MountFlags::empty(), options)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec nothing is done but system calls; paths short enough take no memory.
        unsafe { command.pre_exec(prepare) };
        command.args(OPTIONS);
    })
    .await;
    let root = format!("/proc/{}/root", skep.pid());
    let seen = folders.iter().map(|folder| PathBuf::from(format!("{root}{}", folder.display()))).collect();
    (skep, seen)
}

fn fill(path: &Path) {
    let mut filler = File::create(path).unwrap();
    let error = loop {
        if let Err(error) = filler.write_all(&[0; 4096]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}

async fn make_key(skep: &Skep, number: u32) -> Answer {
    skep.post("/api/keys", &json!({"name": format!("key-{number}"), "role": "agent"})).await
}

#[tokio::test]
async fn a_full_disk_is_reported_and_the_server_recovers() {
    let (skep, folder) = on_a_small_disk().await;
    make_key(&skep, 0).await.ok(201);
    fill(&folder.join("filler"));
    let mut answered = 1;
    // What the store has on the disk already takes some more.
    let refused = loop {
        let answer = make_key(&skep, answered).await;
        if answer.status != 201 {
            break answer;
        }
        answered += 1;
        assert!(answered < 5000, "the disk never fills");
    };
    refused.refused(503, "store_unavailable");
    // One page may still fit, which a check takes. It writes at most one each second.
    let mut refused = 0;
    eventually("health checks that find the disk full", async || {
        refused = if skep.get("/api/health").await.status == 503 { refused + 1 } else { 0 };
        refused == REFUSALS
    })
    .await;
    skep.get("/api/health").await.refused(503, "store_unavailable");
    skep.get("/api/whoami").await.ok(200);
    let metrics = skep.get("/metrics").await.ok(200);
    assert!(metrics.as_str().unwrap().contains("\nskep_store_up 0\n"), "{metrics}");

    fs::remove_file(folder.join("filler")).unwrap();
    make_key(&skep, answered).await.ok(201);
    skep.health().await;
    let list = skep.get("/api/keys?limit=1").await.ok(200);
    assert_eq!(list["keys"][0]["name"], format!("key-{answered}"), "what was refused left nothing");
}
