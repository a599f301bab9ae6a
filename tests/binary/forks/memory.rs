//! The files in memory from which a fork launches its VMs: they are freed when the last of these VMs has ended.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt, path::Path};

use serde_json::json;

use super::faults::captures;
use crate::{
    copies::{fork, path_of, pid_of},
    harness::{Skep, eventually},
};

/// The names of the files with pages of the parent, with their numbers, and with the state of its devices.
const NAMES: [&str; 3] = ["/memfd:skep-delta", "/memfd:skep-pages", "/memfd:skep-state"];
/// More than a VM changes by itself.
const FILL: &str = "head -c 2M /dev/urandom > /dev/shm/block; sha256sum < /dev/shm/block";

/// The inode numbers of the files of forks that a process maps. None for one that has ended.
fn mapped(pid: u64) -> BTreeSet<u64> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let of_forks = maps.lines().filter(|line| NAMES.iter().any(|name| line.contains(name)));
    of_forks.map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap()).collect()
}

/// The inode numbers of the files of forks that a process has open.
fn open(pid: u64) -> BTreeSet<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_of_fork = |file: &Path| {
        let target = fs::read_link(file).unwrap_or_default();
        NAMES.iter().any(|name| target.to_string_lossy().starts_with(name))
    };
    let of_forks = files.map(|file| file.path()).filter(|file| is_of_fork(file));
    of_forks.filter_map(|file| Some(fs::metadata(file).ok()?.ino())).collect()
}

fn held(pid: u64) -> BTreeSet<u64> {
    &mapped(pid) | &open(pid)
}

/// The processes of the whole machine that map or have open one of these files.
fn holders(files: &BTreeSet<u64>) -> BTreeSet<u64> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|pid| !held(*pid).is_disjoint(files)).collect()
}

/// How many disk layers the keeper has open.
fn layers(skep: &Skep) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", skep.pid())).unwrap().flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("/keeper/layers/")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_fork_is_freed_with_its_last_copy() {
    let skep = Skep::start().await;
    let parent = skep.boot(1).await.remove(0);
    let sum = skep.output(pid_of(&parent), FILL).await;
    let of_one_vm = layers(&skep);
    assert_ne!(of_one_vm, 0, "the layer of the parent is found");
    let copies = fork(&skep, &parent, &json!({"count": 2})).await;
    let [one, other] = [0, 1].map(|at| pid_of(&copies[at]));

    let files = held(one);
    assert!(!mapped(one).is_empty(), "a copy maps what the fork copied");
    assert_eq!(mapped(one), mapped(other));
    // The keeper and the parent have none of them.
    let held_by = async |wanted: &[u64]| {
        let wanted: BTreeSet<u64> = wanted.iter().copied().collect();
        eventually(&format!("{files:?} in exactly {wanted:?}"), async || holders(&files) == wanted).await;
    };
    held_by(&[one, other]).await;
    eventually("the end of the capture", async || captures(&skep) == 0).await;
    eventually("the end of its layer", async || layers(&skep) == 3 * of_one_vm).await;

    skep.delete(&path_of(&copies[0])).await.ok(200);
    held_by(&[other]).await;
    // A copy of the copy has files of its own.
    let last = fork(&skep, &copies[1], &json!({})).await.remove(0);
    held_by(&[other]).await;
    skep.delete(&path_of(&copies[1])).await.ok(200);
    held_by(&[]).await;
    for vm in [&parent, &last] {
        assert_eq!(skep.output(pid_of(vm), "sha256sum < /dev/shm/block").await, sum);
    }

    let of_last = held(pid_of(&last));
    assert!(!of_last.is_empty());
    skep.delete(&path_of(&last)).await.ok(200);
    eventually("the end of the last files", async || holders(&of_last).is_empty()).await;
    eventually("the end of the last layers", async || layers(&skep) == of_one_vm).await;
    assert_eq!(captures(&skep), 0);
}
