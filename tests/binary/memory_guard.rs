//! VMs that together use more memory than the machine has: which of them end, and who lives on.

mod thorough;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use futures_util::future::select_all;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::harness::{
    Answer, Skep, binary, command, eventually, output_of, send, temp_dir, unique_name, write_program,
};

/// The memory of the machine: so little that a few VMs fill it, and that other tests need not wait until it is free.
const MACHINE_BYTES: u64 = 2 << 30;
/// Less than what lets idle VMs go to disk on this machine, and more than what lets the guard end VMs.
const SHORT_MB: u64 = 700;
const VMS: u32 = 10;
/// VMs that must end before a test is over.
const ENDS: usize = 3;
/// CAP_SYS_RESOURCE, which a process needs to lower its value, see capabilities(7).
const CAP_SYS_RESOURCE: u32 = 24;
/// Touches 50 MB each second, up to 700 MB.
const TOUCH: &str = "python3 -c \"
import time
held = []
for _ in range(140):
    held.append(bytearray(5 << 20))
    held[-1][::4096] = b'x' * 1280
    time.sleep(0.1)
time.sleep(3600)
\"";

/// Holds 100 MB in the background.
const HOLD: &str = "python3 -c \"
import time
held = bytearray(100 << 20)
held[::4096] = b'x' * 25600
open('/run/held', 'w').close()
time.sleep(3600)
\" < /dev/null > /dev/null 2>&1 & while [ ! -e /run/held ]; do sleep 0.1; done; rm /run/held";

/// A control group with a memory limit, which is the top of the hierarchy for what runs in it: a small machine.
pub(crate) struct SmallMachine {
    group: PathBuf,
    /// The group of the server. In version 2 of control groups it is below: a group with processes gets no groups with limits.
    home: PathBuf,
    folder: TempDir,
    /// Holds the namespaces. A server that takes over VMs must find the network namespace that the one before mounted. It ends
    /// with its standard input, also if the process of the tests is killed.
    holder: Child,
}

impl SmallMachine {
    pub(crate) fn new() -> Self {
        let (base, mount, home) = match Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
            true => ("/sys/fs/cgroup/memory", "-t cgroup -o memory", ""),
            false => ("/sys/fs/cgroup", "-t cgroup2", "server"),
        };
        let group = Path::new(base).join(unique_name("machine"));
        fs::create_dir(&group).unwrap();
        let script = format!(
            "echo 0 > {group}/cgroup.procs\nexec unshare --mount --cgroup sh -ec '\n\
             umount {base}\nmount {mount} cgroup {base}\necho ready\nexec cat'",
            group = group.display(),
        );
        let mut holder = Command::new("sh");
        holder.args(["-ec", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let home = group.join(home);
        let mut machine = Self { group, home, folder: temp_dir(), holder: holder.spawn().unwrap() };
        let mut line = String::new();
        BufReader::new(machine.holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // The namespace stays below the group.
        fs::write(Path::new(base).join("cgroup.procs"), machine.holder.id().to_string()).unwrap();
        machine.leave_all();
        fs::create_dir_all(&machine.home).unwrap();
        let script = format!(
            "#!/bin/sh\nset -e\necho 0 > {home}/cgroup.procs\nexec nsenter --target {holder} --mount --cgroup {skep} \"$@\"\n",
            home = machine.home.display(),
            holder = machine.holder.id(),
            skep = binary().canonicalize().unwrap().display(),
        );
        write_program(&machine.skep(), &script);
        machine
    }

    /// A program that runs the binary under test on this machine.
    pub(crate) fn skep(&self) -> PathBuf {
        self.folder.path().join("enter")
    }

    pub(crate) fn leave_all(&self) {
        self.limit(MACHINE_BYTES);
    }

    /// Leaves this much memory, in bytes, besides what is taken and cannot be reclaimed.
    pub(crate) fn leave_only(&self, bytes: u64) {
        let stat = fs::read_to_string(self.group.join("memory.stat")).unwrap();
        let value = |name: &str| -> Option<u64> {
            stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        };
        // The names of version 1, which count the groups below, and those of version 2.
        let [anonymous, shared] = [["total_rss", "anon"], ["total_shmem", "shmem"]];
        let taken = |[first, second]: [&str; 2]| value(first).or_else(|| value(second)).unwrap();
        self.limit(taken(anonymous) + taken(shared) + bytes);
    }

    fn limit(&self, bytes: u64) {
        let files = ["memory.limit_in_bytes", "memory.max"].map(|file| self.group.join(file));
        let file = files.into_iter().find(|file| file.exists()).unwrap();
        fs::write(file, bytes.to_string()).unwrap();
    }

    async fn start(&self, guard: &str) -> Skep {
        let options = [
            "--base-memory-mb",
            "1024",
            "--base-vcpus",
            "1",
            "--base-disk-mb",
            "10240",
            "--memory-overcommit",
            "20",
            "--memory-guard",
            guard,
        ];
        let alter = |command: &mut Command| _ = command.args(options);
        Skep::start_by(&self.skep(), temp_dir(), alter).await
    }
}

impl Drop for SmallMachine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        // The server in it has ended before.
        for group in [&self.home, &self.group] {
            let _ = fs::remove_dir(group);
        }
    }
}

fn may_lower() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() & (1 << CAP_SYS_RESOURCE) != 0
}

fn id_of(vm: &Value) -> &str {
    vm["id"].as_str().unwrap()
}

/// Lets the VMs touch memory until some have ended. Returns what the callers of these read.
async fn fill_memory(skep: &Skep, vms: &[Value]) -> Vec<String> {
    let touch = |vm: &Value| -> JoinHandle<Answer> {
        let request = skep.request(Method::POST, &format!("/api/swarm/vm/{}/exec", id_of(vm)));
        tokio::spawn(send(request.json(&json!({"command": TOUCH, "timeout": 600_000}))))
    };
    let mut running: Vec<_> = vms.iter().map(touch).collect();
    let mut read = Vec::new();
    while read.len() < ENDS {
        let (answer, _, rest) = select_all(running).await;
        read.push(answer.unwrap().refused(409, "vm_ended").to_owned());
        running = rest;
    }
    running.iter().for_each(JoinHandle::abort);
    read
}

/// The messages of the first VMs that ended, from their events.
fn messages_of_ends(skep: &Skep) -> Vec<String> {
    let count = ENDS.to_string();
    let arguments = ["events", "--from-start", "--type", "vm.ended", "--json", "--count", &count];
    let output = output_of(&mut command(skep, &arguments));
    let lines = String::from_utf8(output.stdout).unwrap();
    let message = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["reason"], "out_of_memory", "{line}");
        event["message"].as_str().unwrap().to_owned()
    };
    lines.lines().map(message).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vm_that_exceeds_its_share_most_ends_before_the_kernel_kills_any_process() {
    let machine = SmallMachine::new();
    let skep = machine.start("on").await;
    let other = skep.tenant("other").await;
    let others_vm = other.boot().await;
    let vms = skep.boot(VMS).await;
    let capacity = &skep.get("/api/swarm/status").await.ok(200)["capacity"];
    let available = capacity["memory_available_mb"].as_u64().unwrap();
    assert!(available < MACHINE_BYTES >> 20, "the limit is that of the machine: {capacity}");
    let processes = [Some(skep.pid()), skep.server_pid()];

    for message in fill_memory(&skep, &vms).await {
        assert!(message.starts_with("the VM ended: out_of_memory (only "), "{message}");
        assert!(message.contains("exceeded its share most"), "{message}");
    }
    for message in messages_of_ends(&skep) {
        assert!(message.contains("exceeded its share most"), "not by the kernel: {message}");
    }
    // No memory for another VM, and the VM of the account that used none lives on.
    let refused = skep.post("/api/swarm/boot", &json!({"count": VMS})).await;
    let message = refused.refused(503, "no_capacity");
    assert!(message.contains("MiB of memory are available"), "{message}");
    let path = format!("/api/swarm/vm/{}/exec", id_of(&others_vm));
    let answer = other.post(&path, &json!({"command": "echo lives"})).await.ok(200);
    assert_eq!(answer["stdout"], "lives\n");
    assert_eq!([Some(skep.pid()), skep.server_pid()], processes);
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    drop(skep);
}

async fn run(skep: &Skep, vm: &Value, script: &str) -> String {
    let path = format!("/api/swarm/vm/{}/exec", id_of(vm));
    let ran = skep.post(&path, &json!({"command": script, "timeout": 120_000})).await.ok(200);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().trim_end().to_owned()
}

async fn available_mb(skep: &Skep) -> u64 {
    let status = skep.get("/api/swarm/status").await.ok(200);
    status["capacity"]["memory_available_mb"].as_u64().unwrap()
}

async fn place(skep: &Skep, vm: &Value) -> (Value, Value) {
    let record = skep.get(&format!("/api/swarm/vm/{}", id_of(vm))).await.ok(200);
    (record["paused_to"].clone(), record["paused_by"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn low_memory_sends_an_idle_vm_to_disk_before_any_vm_ends() {
    let machine = SmallMachine::new();
    let skep = machine.start("on").await;
    let idle =
        skep.post("/api/swarm/boot", &json!({"idle_timeout_ms": 1000})).await.ok(201)["vms"][0].clone();
    run(&skep, &idle, "echo kept > /dev/shm/file").await;
    let in_memory = (json!("memory"), json!("idle"));
    eventually("a pause for being idle", async || place(&skep, &idle).await == in_memory).await;
    // The control: a VM that a request paused stays in memory.
    let paused = skep.boot(1).await.remove(0);
    skep.post(&format!("/api/swarm/vm/{}/pause", id_of(&paused)), &json!({})).await.ok(200);

    let working = skep.boot(6).await;
    // Together they hold more than the machine has. Once its memory is short, they take no more: the move takes as long as the
    // disk does, and the guard ends a VM if even less is left.
    for vm in working.iter().cycle().take(working.len() * 8) {
        if available_mb(&skep).await < SHORT_MB || place(&skep, &idle).await != in_memory {
            break;
        }
        run(&skep, vm, HOLD).await;
    }
    let on_disk = (json!("disk"), json!("memory"));
    eventually("the move to disk", async || place(&skep, &idle).await == on_disk).await;
    assert_eq!(place(&skep, &paused).await, (json!("memory"), json!("request")));
    for vm in &working {
        assert_eq!(run(&skep, vm, "echo lives").await, "lives");
    }

    for vm in &working {
        skep.delete(&format!("/api/swarm/vm/{}", id_of(vm))).await.ok(200);
    }
    assert_eq!(run(&skep, &idle, "cat /dev/shm/file").await, "kept");
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    drop(skep);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_kills_a_vm_before_the_server_and_the_server_before_the_keeper() {
    let skep = Skep::start().await;
    let vm = skep.boot_one().await;
    let score = |pid: u32| -> i16 {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse().unwrap()
    };
    // Starts a helper, and a command, which says its own.
    let own = "cat /proc/self/oom_score_adj";
    let answer = skep.post("/api/exec", &json!({"command": own})).await.ok(200);
    assert_eq!(answer["stdout"], "500\n");
    // A container may lack the capability; then the values that would be lowered stay as they are.
    let mine = score(std::process::id());
    let lowered = |value: i16| if may_lower() { value } else { mine };
    assert_eq!(score(skep.pid()), lowered(-900));
    assert_eq!(score(u32::try_from(vm).unwrap()), 500);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", skep.pid())).unwrap();
    let vmms = skep.vmms();
    let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let mut others: Vec<i16> = children.filter(|pid| !vmms.contains(pid)).map(score).collect();
    others.sort_unstable();
    assert_eq!(others, [lowered(-800), lowered(-800), 500], "server, egress process and helper");
}
