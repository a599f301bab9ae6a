//! VMs of the size that is the default, beside those of the other tests.

mod thorough;

use std::{fs, thread::available_parallelism};

use serde_json::Value;

use crate::{
    harness::{Skep, eventually, step, temp_dir},
    memory::{MemoryGroup, grown_since, template_memory},
    usage::{complete_metrics, figure},
};

/// What each VM may take beside its guest's memory, in MiB: more is a code cache under emulation.
const OVERHEADS_MB: [u64; 2] = [64, 128];
/// Takes 90 % of the memory of the guest, and counts the pages that it reads back.
const USE_MOST: &str = "python3 -c \"
used = bytearray(int(open('/proc/meminfo').readline().split()[1]) * 1024 * 90 // 100)
used[::4096] = bytes([1]) * len(range(0, len(used), 4096))
print(used[::4096].count(1), len(used) >> 20)
\"";

/// Upper limit for the memory that a new VM of any size holds, in MiB.
const FRESH_MB: u64 = 100;

/// Prints the system, the user, and tools that are missing. For each spare disk it prints how many of the written bytes can be
/// read again.
const CONTENT: &str = r"
. /etc/os-release; echo $ID $VERSION_ID, user $(id -u)
for tool in bash git python3 pip3 curl ls; do command -v $tool > /dev/null || echo no $tool; done
python3 -m venv --without-pip /tmp/venv && /tmp/venv/bin/python -c 'print(1)'
for disk in vdc vdd vde vdf; do
    yes | dd of=/dev/$disk bs=4k count=1 iflag=fullblock oflag=direct 2> /dev/null || echo $disk
    dd if=/dev/$disk bs=4k count=1 iflag=direct 2> /dev/null | tr -d '\0' | wc -c
done";

/// What a VMM may use of a processor beside its guest's, in percent.
const CPU_OVERHEAD_PERCENT: u64 = 50;

fn pid_of(vm: &Value) -> u64 {
    vm["pid"].as_u64().unwrap()
}

/// The options of a server whose VMs have 1,024 MB, some processors and 10 GB of disk.
pub(crate) fn large_vms(vcpus: &str) -> [&str; 6] {
    ["--base-memory-mb", "1024", "--base-vcpus", vcpus, "--base-disk-mb", "10240"]
}

async fn server(vcpus: &str) -> Skep {
    Skep::start_on(temp_dir(), &large_vms(vcpus)).await
}

/// The processors of VMs of the default size.
pub(crate) fn vcpus() -> String {
    available_parallelism().unwrap().get().min(2).to_string()
}

/// The first file of these that a group of the VM has.
fn read_of_groups(skep: &Skep, vm: &Value, names: [&str; 2]) -> (usize, String) {
    let groups = skep.groups_of(vm["id"].as_str().unwrap());
    let read = |name: &str| groups.iter().find_map(|group| fs::read_to_string(group.join(name)).ok());
    let mut found = names.iter().map(|name| read(name)).enumerate();
    found.find_map(|(version, text)| Some((version, text?.trim().to_owned()))).unwrap()
}

/// Quota and weight of the control group grow with the processors.
fn has_the_processor_time_of_its_size(skep: &Skep, vm: &Value) {
    let vcpus = vm["vcpus"].as_u64().unwrap();
    let quota = match read_of_groups(skep, vm, ["cpu.cfs_quota_us", "cpu.max"]) {
        (0, quota) => (quota, read_of_groups(skep, vm, ["cpu.cfs_period_us"; 2]).1),
        (_, both) => {
            both.split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned())).unwrap()
        }
    };
    let [quota, period] = [quota.0, quota.1].map(|text| text.parse::<u64>().unwrap());
    assert_eq!(quota * 100 / period, 100 * vcpus + CPU_OVERHEAD_PERCENT);
    let expected = match read_of_groups(skep, vm, ["cpu.shares", "cpu.weight"]) {
        (0, shares) => (shares, 1024 * vcpus),
        (_, weight) => (weight, 100 * vcpus),
    };
    assert_eq!(expected.0, expected.1.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_of_1024_mb_has_its_size_and_may_use_all_of_it() {
    let vcpus = vcpus();
    let skep = server(&vcpus).await;
    let vm = skep.boot(1).await.remove(0);
    assert_eq!((vm["memory_mb"].as_u64(), vm["vcpus"].to_string()), (Some(1024), vcpus.clone()));
    let pid = pid_of(&vm);
    let held_mb = async || figure(&complete_metrics(&skep, &vm).await, "/memory/held_mb");
    let fresh_mb = held_mb().await;
    assert!(fresh_mb < FRESH_MB, "{fresh_mb} MiB");
    step("system, tools and spare disks", async {
        assert_eq!(skep.output(pid, CONTENT).await, "debian 12, user 0\n1\n0\n0\n0\n0");
    })
    .await;

    let size =
        "nproc; awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo; df --output=size -BM / | tail -n 1";
    let size = skep.output(pid, size).await;
    let [processors, total, disk] = size.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(processors, vcpus);
    assert!((900..1024).contains(&total.parse::<u32>().unwrap()), "{total} MiB");
    let disk: u32 = disk.trim_end_matches('M').parse().unwrap();
    assert!((9_500..=10_240).contains(&disk), "{disk} MiB");

    has_the_processor_time_of_its_size(&skep, &vm);
    let before = template_memory(skep.pid());
    let used = skep.output(pid, USE_MOST).await;
    let (pages, used_mb) = used.split_once(' ').unwrap();
    let (pages, used_mb): (u64, u64) = (pages.parse().unwrap(), used_mb.parse().unwrap());
    assert!(pages >= used_mb * 256 && used_mb > 810, "{used}");
    // The control: memory that the guest has used is counted.
    eventually("what the VM has used", async || held_mb().await > 810).await;
    let grown = grown_since(before, skep.pid());
    assert!(grown < 5 << 20, "the template grew by {grown} bytes");
    let limit_mb = MemoryGroup::of(&skep, &vm).limit() >> 20;
    assert!(OVERHEADS_MB.contains(&(limit_mb - 1024)), "{limit_mb} MiB");
    let counted = skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].clone();
    assert_eq!(counted, limit_mb);
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    assert_eq!(skep.count().await, 0);
}
