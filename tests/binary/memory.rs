//! The memory of VMs: what a VM takes that works for long, and what callers read where its VMM is killed for memory.

mod thorough;

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Skep, eventually, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_vm_is_killed_for_memory_reads_so_and_the_vm_is_listed_as_ended() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let (vm, other) = (&vms[0], &vms[1]);
    let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
    let exec = |body: Value| send(skep.request(Method::POST, &format!("{path}/exec")).json(&body));
    // Longer than the default, which a busy machine may reach.
    let timeout = 240_000;
    let waiting = tokio::spawn(exec(json!({"command": "touch /begun; sleep 600", "timeout": timeout})));
    let streamed = tokio::spawn(exec(
        json!({"command": "touch /streams; sleep 600", "stream": true, "timeout": timeout}),
    ));
    for file in ["/begun", "/streams"] {
        let begun = format!("/api/files/read?vm={}&path={file}", vm["id"].as_str().unwrap());
        eventually("the command", async || skep.get(&begun).await.status == 200).await;
    }

    MemoryGroup::of(&skep, vm).leave_only(8 << 20);
    // Less than commands may have in the guest, and more than its VMM may have now.
    let hog = exec(json!({"command": "head -c 40M /dev/zero | tail -n 1 | wc -c", "timeout": timeout})).await;
    let answers = [("the hog", hog), ("the other call", waiting.await.unwrap())];
    for (call, answer) in answers {
        assert_eq!(
            answer.refused(409, "vm_ended"),
            "the VM ended: out_of_memory (the kernel killed its VMM for memory)",
            "{call}"
        );
    }
    let events = streamed.await.unwrap().body;
    assert!(events.as_str().unwrap().contains("the VM ended: out_of_memory"), "{events}");
    skep.get(&path).await.refused(404, "unknown_vm");

    let listed = skep.get("/api/vms?state=ended").await.ok(200);
    let [ended] = listed["vms"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    let found = (&ended["id"], &ended["pid"], &ended["state"], &ended["reason"]);
    assert_eq!(found, (&vm["id"], &vm["pid"], &json!("ended"), &json!("out_of_memory")));
    assert!(ended["ended_at"].is_string(), "{ended}");
    let living = skep.get("/api/vms").await.ok(200);
    assert_eq!((&living["vms"][0]["id"], living["vms"].as_array().unwrap().len()), (&other["id"], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_a_guest_uses_is_counted_and_not_allocated_in_the_template_too() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let pid = vm["pid"].as_u64().unwrap();
    let before = template_memory(skep.pid());
    // `tail` keeps the line in memory: two thirds of the limit of commands.
    let most = "limit=$(cat /sys/fs/cgroup/skep/memory.max)
        head -c $((limit * 2 / 3)) /dev/zero | tail -n 1 | wc -c";
    let used: u64 = skep.output(pid, most).await.trim().parse().unwrap();
    assert!(used > 20 << 20, "{used}");
    let grown = grown_since(before, skep.pid());
    assert!(grown < 5 << 20, "the template grew by {grown} bytes");

    // What is counted for a VM is what it may take.
    let counted = skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].clone();
    assert_eq!(counted.as_u64(), Some(MemoryGroup::of(&skep, &vm).limit() >> 20));

    // Otherwise a few bytes of a hole would take 2 MiB.
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let huge: Vec<&str> = maps.lines().filter(|line| line.starts_with("AnonHugePages:")).collect();
    assert!(!huge.is_empty() && huge.iter().all(|line| line.ends_with(" 0 kB")), "{huge:?}");
}

/// The bytes that are allocated in the memory file of the template, which the keeper holds open.
pub(crate) fn template_memory(keeper: u32) -> u64 {
    let is_ram = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:skep-ram"))
    };
    let open = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let ram = open.into_iter().find(is_ram).unwrap();
    fs::metadata(ram).unwrap().blocks() * 512
}

/// How many more bytes are allocated than before. The kernel's figure includes pages that it is about to add and may not add, so that
/// it can also fall.
pub(crate) fn grown_since(before: u64, keeper: u32) -> u64 {
    template_memory(keeper).saturating_sub(before)
}

/// The group that limits the memory of a VM.
pub(crate) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    pub(crate) fn of(skep: &Skep, vm: &Value) -> Self {
        let groups = skep.groups_of(vm["id"].as_str().unwrap());
        let has_limit = |group: &PathBuf| LIMITS.iter().any(|file| group.join(file).exists());
        Self(groups.into_iter().find(has_limit).unwrap())
    }

    fn limit_file(&self) -> PathBuf {
        LIMITS.iter().map(|file| self.0.join(file)).find(|path| path.exists()).unwrap()
    }

    /// In bytes.
    pub(crate) fn limit(&self) -> u64 {
        fs::read_to_string(self.limit_file()).unwrap().trim().parse().unwrap()
    }

    /// Memory that cannot be reclaimed, in bytes.
    fn taken(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let value = |line: &str| line.strip_prefix("total_rss ").or(line.strip_prefix("anon "))?.parse().ok();
        stat.lines().find_map(value).unwrap()
    }

    /// Lowers the limit to the current use plus this number of bytes.
    fn leave_only(&self, bytes: u64) {
        fs::write(self.limit_file(), (self.taken() + bytes).to_string()).unwrap();
    }
}

/// The files of the limit by the two versions of control groups.
const LIMITS: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];
