//! The limits of what a VM reads and writes on its disks in a second. Compared are bytes and operations, as the VMM counts
//! them, with those that the limit allows in the time that passed: more time on a slow machine allows more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Skep, temp_dir};

const MB: f64 = 1e6;
/// Why the control fails.
const TOO_SLOW: &str = "the disk of this machine is too slow to show what the limits do";
/// Requests of 64 KiB, past the guest's page cache.
fn large_writes(count: u32) -> String {
    format!("dd if=/dev/zero of=/large bs=64k count={count} oflag=direct conv=fsync")
}

fn small_writes(count: u32) -> String {
    format!("dd if=/dev/zero of=/small bs=4k count={count} oflag=direct conv=fsync")
}

/// MiB of the root that all VMs share.
fn reads(mb: u32) -> String {
    format!("dd if=/dev/vda of=/dev/null bs=64k count={} iflag=direct", mb * 16)
}

/// What a command did on the private layer.
struct Work {
    written_bytes: f64,
    writes: f64,
    took: Duration,
}

impl Work {
    /// A work that needs more than this number of a second's worth, and was done earlier than such a limit allows.
    fn exceeds(&self, of_it: f64, a_second: f64) -> bool {
        // One second's worth in advance, and one for the request with which the limit is reached.
        of_it > a_second * (self.took.as_secs_f64() + 2.0)
    }
}

async fn counter(skep: &Skep, vm: &Value, name: &str) -> f64 {
    let metrics = skep.get(&format!("/api/swarm/vm/{}/metrics", vm["id"].as_str().unwrap())).await.ok(200);
    metrics["disk"]["traffic"][name].as_f64().unwrap_or_else(|| panic!("{metrics}"))
}

async fn work(skep: &Skep, vm: &Value, command: &str) -> Work {
    let begun = Instant::now();
    let (bytes, writes) = (counter(skep, vm, "written_bytes").await, counter(skep, vm, "writes").await);
    skep.output(vm["pid"].as_u64().unwrap(), command).await;
    let written_bytes = counter(skep, vm, "written_bytes").await - bytes;
    let writes = counter(skep, vm, "writes").await - writes;
    Work { written_bytes, writes, took: begun.elapsed() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_writes_and_reads_at_the_speed_of_the_settings_and_another_works_meanwhile() {
    let limits = ["--vm-disk-mbps", "1", "--vm-disk-iops", "100", "--pool-size", "0"];
    let skep = Skep::start_on(temp_dir(), &limits).await;
    let vms = skep.boot(2).await;
    let (vm, other) = (&vms[0], vms[1]["pid"].as_u64().unwrap());
    let others_work = async {
        for _ in 0..10 {
            assert_eq!(skep.output(other, "echo a > /a && sync && cat /a").await, "a");
        }
    };
    let command = large_writes(96);
    let (large, ()) = tokio::join!(work(&skep, vm, &command), others_work);
    assert!(large.written_bytes > 6.0 * MB, "{}", large.written_bytes);
    assert!(!large.exceeds(large.written_bytes, MB), "{} bytes in {:?}", large.written_bytes, large.took);
    let small = work(&skep, vm, &small_writes(400)).await;
    assert!(small.writes >= 400.0, "{}", small.writes);
    assert!(!small.exceeds(small.writes, 100.0), "{} writes in {:?}", small.writes, small.took);
    let reads = work(&skep, vm, &reads(6)).await;
    assert!(!reads.exceeds(6.0 * MB, MB), "6 MiB of the root in {:?}", reads.took);
}

/// The control. It does more of the same work, so that it exceeds the limits on a slow machine too.
#[tokio::test(flavor = "multi_thread")]
async fn without_limits_a_vm_exceeds_them() {
    let limits = ["--vm-disk-mbps", "0", "--vm-disk-iops", "0", "--pool-size", "0"];
    let skep = Skep::start_on(temp_dir(), &limits).await;
    let vm = skep.boot(1).await.remove(0);
    let large = work(&skep, &vm, &large_writes(1024)).await;
    assert!(
        large.exceeds(large.written_bytes, MB),
        "{TOO_SLOW}: {} bytes in {:?}",
        large.written_bytes,
        large.took
    );
    let small = work(&skep, &vm, &small_writes(4000)).await;
    assert!(small.exceeds(small.writes, 100.0), "{TOO_SLOW}: {} writes in {:?}", small.writes, small.took);
    let reads = work(&skep, &vm, &reads(64)).await;
    assert!(reads.exceeds(64.0 * MB, MB), "{TOO_SLOW}: 64 MiB of the root in {:?}", reads.took);
}

/// Requests that wait for the limit must not hold up what stops the processors.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_whose_disk_waits_for_its_limit_can_be_paused_resumed_and_ended() {
    let skep = Skep::start_on(temp_dir(), &["--vm-disk-mbps", "1", "--pool-size", "0"]).await;
    let vm = skep.boot(1).await.remove(0);
    let (pid, path) = (vm["pid"].as_u64().unwrap(), format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap()));
    let endless = "(while dd if=/dev/zero of=/x bs=1M count=64 oflag=direct; do :; done) >/dev/null 2>&1 &";
    skep.output(pid, endless).await;
    crate::harness::eventually("a limited write", async || counter(&skep, &vm, "writes").await > 0.0).await;
    skep.post(&format!("{path}/pause"), &json!({})).await.ok(200);
    let paused = counter(&skep, &vm, "written_bytes").await;
    assert_eq!(counter(&skep, &vm, "written_bytes").await, paused, "a paused VM writes");
    skep.post(&format!("{path}/resume"), &json!({})).await.ok(200);
    crate::harness::eventually("the next write", async || {
        counter(&skep, &vm, "written_bytes").await > paused
    })
    .await;
    assert_eq!(skep.output(pid, "echo on").await, "on");
    skep.output(pid, "while pkill -x dd; do sleep 0.1; done").await;
    let skep = keeps_its_limit(skep, &vm).await;
    skep.delete(&path).await.ok(200);
}

/// Changed limits apply only to VMs that are booted afterwards. Returns the server with the changed limits.
async fn keeps_its_limit(skep: Skep, vm: &Value) -> Skep {
    let unlimited = ["--vm-disk-mbps", "0", "--vm-disk-iops", "0", "--pool-size", "0"];
    let skep = skep.stop_and_leave_vms().start_with(&unlimited).await;
    let kept = work(&skep, vm, &large_writes(96)).await;
    assert!(!kept.exceeds(kept.written_bytes, MB), "{} bytes in {:?}", kept.written_bytes, kept.took);
    let next = skep.boot(1).await.remove(0);
    let control = work(&skep, &next, &large_writes(256)).await;
    assert!(
        control.exceeds(control.written_bytes, MB),
        "{TOO_SLOW}: {} bytes in {:?}",
        control.written_bytes,
        control.took
    );
    skep
}
