//! A guest of the default size whose processors, memory and disk are full.

use serde_json::json;

use super::{server, vcpus};
use crate::hogs::{BOMB, Pair, TAKE_ALL, layer_of};

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
