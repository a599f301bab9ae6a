//! Hogs of memory in several places, longer floods, and the recovery from a fork bomb.

use reqwest::Method;
use serde_json::Value;

use super::{BOMB, KEPT_BYTES, Pair, TAKE_ALL, packets_of_guests};
use crate::harness::{eventually, send};

#[tokio::test(flavor = "multi_thread")]
async fn files_that_lie_in_a_guests_memory_leave_it_enough() {
    let pair = Pair::start().await;
    // Both as full as they get, and each tried twice.
    let fill =
        "for place in /dev/shm /run /dev/shm /run; do head -c 128M /dev/zero > $place/filled; done 2>&1
        df --output=pcent /dev/shm /run | grep -c 100%";
    let answer = pair.run(fill, 240_000).await;
    let output = answer["stdout"].as_str().unwrap();
    assert!(output.contains("No space left") && output.ends_with("2\n"), "{answer}");
    for name in ["/dev/shm/more", "/run/more"] {
        let upload = format!("/api/files/raw?vm={}&path={name}", pair.hog());
        let upload = pair.skep.request(Method::PUT, &upload).body(vec![0; 64 << 20]);
        send(upload).await.refused(503, "disk_full");
    }
    // More than there is of memory has room where temporary files lie.
    let on_disk =
        "head -c 160M /dev/zero > /tmp/filled; stat -c %s /tmp/filled; stat -c %a /tmp; rm /tmp/filled";
    let answer = pair.run(on_disk, 240_000).await;
    assert_eq!(answer["stdout"], "167772160\n1777\n", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_recovers_from_a_fork_bomb() {
    let pair = Pair::start().await;
    pair.run(BOMB, 8_000).await;
    pair.is_well_or_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_hog_in_a_guest_is_killed_and_its_vm_lives_on() {
    let pair = Pair::start().await;
    let hogs = [
        // `tail` keeps all of its input until the end.
        "head -c 1G /dev/zero | tail -n 1 | wc -c".to_owned(),
        TAKE_ALL.to_owned(),
        format!("head -c 128M /dev/zero > /dev/shm/filled; {TAKE_ALL}"),
        // Outside of the limit on commands, so the guest's kernel runs out of memory.
        format!("echo $$ > /sys/fs/cgroup/cgroup.procs; {TAKE_ALL}"),
    ];
    for hog in hogs {
        let answer = pair.run(&hog, 240_000).await;
        let (signal, timed_out) = (&answer["signal"], &answer["timed_out"]);
        assert!(signal == "SIGKILL" && timed_out == false, "{hog}: {answer}");
        assert_eq!(pair.skep.output(pair.hog(), "echo on").await, "on", "after {hog}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_the_console_is_cut_and_holds_up_nothing() {
    let pair = Pair::start().await;
    let flood = "yes skep-console-flood | timeout 15 head -c 64M > /dev/console";
    let path = format!("/api/swarm/vm/{}/console", pair.hog());
    let mut console = Value::Null;
    // In this time a busy machine may write less than what is kept.
    eventually("a flood that is cut", async || {
        pair.run(flood, 30_000).await;
        console = pair.skep.get(&path).await.ok(200);
        console["truncated"] == true
    })
    .await;
    let kept = console["console"].as_str().unwrap();
    assert!(kept.len() <= KEPT_BYTES && kept.contains("skep-console-flood"), "{} bytes", kept.len());
    pair.is_well_or_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_the_channel_is_cut_and_holds_up_nothing() {
    let pair = Pair::start().await;
    let answer =
        pair.run("head -c 64M /dev/zero | tr '\\0' x; head -c 64M /dev/zero | tr '\\0' y >&2", 120_000).await;
    assert_eq!(answer["truncated"], true, "{}", answer["exit_code"]);
    for stream in ["stdout", "stderr"] {
        let length = answer[stream].as_str().unwrap().len();
        assert!(length > KEPT_BYTES / 2 && length <= KEPT_BYTES + 4096, "{stream}: {length}");
    }
    pair.is_well_or_ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_the_network_holds_up_nothing() {
    let pair = Pair::start().await;
    let before = packets_of_guests(&pair.skep);
    let flood = "gateway=$(ip route show default | awk '{print $3}')
        timeout 10 bash -c \"exec 3>/dev/udp/$gateway/9; dd if=/dev/zero bs=1400 count=20000 >&3\"";
    pair.run(flood, 30_000).await;
    let packets = packets_of_guests(&pair.skep) - before;
    assert!(packets > 2_000, "the flood was none: {packets} packets");
    pair.is_well_or_ended().await;
}
