//! Guests of the default size: one whose processors, memory and disk are full, processors at the same time, and many boots.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde_json::json;

use super::{pid_of, server, vcpus};
use crate::{
    harness::{Skep, eventually},
    hogs::{BOMB, Pair, TAKE_ALL, layer_of},
};

/// Boots in all, some at a time.
const BOOTS: usize = 20;
const AT_ONCE: u32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_hog_of_a_large_vm_takes_its_own_and_another_vm_works_meanwhile() {
    let pair = Pair::of(server(&vcpus()).await).await;
    // The second is outside of the limit on commands, so the guest's kernel runs out of memory.
    for hog in [TAKE_ALL.to_owned(), format!("echo $$ > /sys/fs/cgroup/cgroup.procs; {TAKE_ALL}")] {
        let answer = pair.run(&hog, 120_000).await;
        assert_eq!((&answer["signal"], &answer["timed_out"]), (&json!("SIGKILL"), &json!(false)), "{answer}");
        assert_eq!(pair.skep.output(pair.hog(), "echo on").await, "on", "after {hog}");
    }

    // All but the last space is reserved without writing, so that this machine's disk gets little of it.
    let fill = "LC_ALL=C; fallocate -l $(($(df --output=avail -BM / | tail -n 1 | tr -d M) - 64))M /reserved
        cat /dev/zero > /filled";
    let answer = pair.run(fill, 120_000).await;
    assert!(answer["stderr"].as_str().unwrap().contains("No space left"), "{answer}");
    let (length, space) = layer_of(pair.hog());
    assert!(length == 10_240 << 20 && space < 512 << 20, "{length} bytes, {space} on the disk");
    let filled =
        pair.skep.output(pair.hog(), "stat -c %s /reserved /filled; rm /reserved /filled; echo on").await;
    let lines: Vec<&str> = filled.lines().collect();
    let [reserved, filled, "on"] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(reserved.parse::<u64>().unwrap() > 9_000 << 20 && filled.parse::<u64>().unwrap() > 32 << 20);

    let answer = pair.run(BOMB, 4_000).await;
    assert!(answer["timed_out"] == true || answer["exit_code"] != 0, "{answer}");
    pair.is_well_or_ended().await;
    pair.others_work().await;
    assert!(pair.skep.post("/api/swarm/cleanup", &json!({})).await.ok(200)["terminated"].as_u64() >= Some(1));
    assert_eq!(pair.skep.count().await, 0);
}

/// Two programs, each on one of these processors of the guest, which run until they have used two seconds of it.
fn two_programs(processors: [u32; 2]) -> String {
    format!(
        "python3 -c \"
import os, time
for processor in {processors:?}:
    if os.fork() == 0:
        os.sched_setaffinity(0, [processor])
        while time.process_time() < 2:
            pass
        os._exit(0)
os.wait()
os.wait()
\""
    )
}

/// The processor time of the threads of a process, in clock ticks.
fn thread_times(pid: u64) -> BTreeMap<PathBuf, u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap().path());
    threads
        .filter_map(|thread| {
            let stat = fs::read_to_string(thread.join("stat")).ok()?;
            // The name of the thread, in parentheses, may have spaces. User and system time are fields 14 and 15.
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            Some((thread, fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?))
        })
        .collect()
}

/// The processor time that the two busiest threads of the VMM use for a command, the busiest first.
async fn two_busiest(skep: &Skep, pid: u64, command: &str) -> [u64; 2] {
    let before = thread_times(pid);
    skep.output(pid, command).await;
    let used = thread_times(pid).into_iter();
    let mut used: Vec<u64> = used.map(|(thread, time)| time - before.get(&thread).unwrap_or(&0)).collect();
    used.sort_unstable();
    [used[used.len() - 1], used[used.len() - 2]]
}

/// Each processor of the guest is a thread of the VMM, so the kernel runs them side by side. Other work on this machine may
/// slow one of them down more than the other, or both more than the start of Python, so an unclear figure is taken again.
async fn processors_are_threads(skep: &Skep, pid: u64) {
    eventually("two busy threads", async || {
        let [first, second] = two_busiest(skep, pid, &two_programs([0, 1])).await;
        eprintln!("{first} and {second} ticks on two processors");
        second * 3 > first
    })
    .await;
    // The control: on one processor they take turns in one thread.
    eventually("one busy thread", async || {
        let [first, second] = two_busiest(skep, pid, &two_programs([0, 0])).await;
        eprintln!("{first} and {second} ticks on one processor");
        second * 2 < first
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processors_run_side_by_side_and_vms_boot_one_after_the_other() {
    let vcpus = vcpus();
    let skep = server(&vcpus).await;
    let pid = skep.boot_one().await;
    if vcpus == "2" {
        processors_are_threads(&skep, pid).await;
    }
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    for _ in 0..BOOTS / AT_ONCE as usize {
        for vm in skep.boot(AT_ONCE).await {
            assert_eq!(
                skep.output(pid_of(&vm), "nproc; hostname").await.lines().next(),
                Some(vcpus.as_str())
            );
            skep.delete(&format!("/api/swarm/vm/{}", pid_of(&vm))).await.ok(200);
        }
    }
    assert_eq!(skep.count().await, 0);
}
