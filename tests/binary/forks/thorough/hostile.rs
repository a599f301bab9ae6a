//! Guests whose root attacks the freeze: it covers the control groups, by which the agent freezes programs, or stops the agent.
//! The call is refused in time, the VM runs on, and once the attack is over it can be copied.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    copies::{State, assert_goes_on, begin, fork, path_of, pid_of, state},
    forks::{faults::captures, host_name},
    harness::{Answer, Skep, eventually, send},
    takeover::{Streamed, assert_in_order, ids, listed},
};

/// Covers all control groups, with a file system that has these files instead, until a file says that it is enough. The unmount
/// is lazy, because the agent may have one of the files open.
fn cover(files: &str) -> String {
    format!(
        "set -e; rm -f /dev/shm/enough; mount -t tmpfs covered /sys/fs/cgroup; cd /sys/fs/cgroup; {files}
        cd /; echo covered; while [ ! -e /dev/shm/enough ]; do sleep 0.1; done; umount -l /sys/fs/cgroup; echo over"
    )
}

/// There is nothing to freeze programs by.
const NOTHING: &str = "true";
/// Programs never seem to stop.
const NEVER: &str = "mkdir skep; touch skep/cgroup.freeze; echo frozen 0 > skep/cgroup.events";
/// Programs seem to have stopped, and run.
const LIE: &str = "mkdir skep; touch skep/cgroup.freeze; echo frozen 1 > skep/cgroup.events";

/// Waits outside of the group that is frozen, and stops the agent by `ptrace` in the middle of a freeze: a cover makes the agent
/// wait for the end of the freeze. Lets it go after this many seconds: longer than a call waits for an answer to the freeze and
/// to the thaw. The agent that is stopped may have the covered file open.
const HOLD: &str = "import ctypes, os, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
def trace(request):
    if libc.ptrace(request, 1, None, None) != 0:
        raise OSError(ctypes.get_errno(), 'ptrace')
SEIZE, INTERRUPT = 0x4206, 0x4207
EVENTS = '/sys/fs/cgroup/skep/cgroup.events'
open('/sys/fs/cgroup/cgroup.procs', 'w').write(str(os.getpid()))
open('/dev/shm/events', 'w').write('frozen 0\\n')
subprocess.run(['mount', '--bind', '/dev/shm/events', EVENTS], check=True)
open('/dev/shm/waits', 'w').close()
frozen = os.open('/sys/fs/cgroup/skep/cgroup.freeze', os.O_RDONLY)
while os.pread(frozen, 1, 0) != b'1':
    time.sleep(0.01)
trace(SEIZE)
trace(INTERRUPT)
time.sleep(30)
subprocess.run(['umount', '-l', EVENTS], check=True)
";
const START_HOLD: &str =
    "cat > /root/hold.py; (setsid python3 /root/hold.py > /root/hold.log 2>&1 </dev/null &)
while [ ! -e /dev/shm/waits ]; do sleep 0.1; done";

struct Attacked {
    vm: Value,
    wanted: State,
    counted: u64,
}

impl Attacked {
    async fn call(&self, skep: &Skep, verb: &str) -> Answer {
        let body = match verb {
            "pause" => json!({"to": "disk"}),
            "snapshot" => json!({"name": "stored"}),
            _ => json!({}),
        };
        send(skep.request(Method::POST, &format!("{}/{verb}", path_of(&self.vm))).json(&body)).await
    }

    async fn begin(&self, skep: &Skep, files: &str) -> Streamed {
        let mut attack = Streamed::begin(skep, pid_of(&self.vm), &cover(files)).await;
        attack.wait_for_output("covered\n".len()).await;
        attack
    }

    async fn end(&mut self, skep: &Skep, mut attack: Streamed) {
        let enough = json!({"vm": pid_of(&self.vm), "path": "/dev/shm/enough", "content": ""});
        skep.post("/api/files/write", &enough).await.ok(201);
        let (kind, end) = attack.rest().await.unwrap();
        assert_eq!((kind.as_str(), &end["exit_code"]), ("exit", &json!(0)), "{end}: {}", attack.stdout);
        self.runs_on(skep).await;
    }

    async fn runs_on(&mut self, skep: &Skep) {
        let (found, counted) = state(skep, &self.vm).await;
        assert_eq!(found, self.wanted);
        assert!(counted > self.counted, "{counted} after {}", self.counted);
        self.counted = counted;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_attacks_the_freeze_is_not_copied_and_runs_on() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &vm).await;
    let mut attacked = Attacked { vm, wanted, counted: 0 };

    // Each call of the second attack waits.
    let attacks = [
        (NOTHING, "freeze all programs", &["fork", "snapshot", "pause"][..]),
        (NEVER, "did not stop within 5 s", &["fork", "pause"]),
    ];
    for (files, reason, verbs) in attacks {
        let attack = attacked.begin(&skep, files).await;
        for verb in verbs {
            let refused = attacked.call(&skep, verb).await;
            let message = refused.refused(504, "guest_timeout");
            assert!(message.contains(reason), "{verb}: {message}");
            assert_eq!(skep.get(&path_of(&attacked.vm)).await.ok(200)["state"], "running");
        }
        attacked.end(&skep, attack).await;
    }
    a_lie_harms_only_its_guest(&skep, &mut attacked).await;
    the_agent_is_held(&skep, &mut attacked).await;
    skep.get("/api/templates/stored").await.refused(404, "unknown_template");
    // The control: without an attack it is copied.
    let copy = fork(&skep, &attacked.vm, &json!({})).await.remove(0);
    assert_goes_on(&skep, &copy, &attacked.wanted, attacked.counted).await;
    assert_in_order(&skep).await;
}

/// Programs that were not frozen run in the copy before it has its identity. Others run on as ever.
async fn a_lie_harms_only_its_guest(skep: &Skep, attacked: &mut Attacked) {
    let other = skep.boot(1).await.remove(0);
    let before = memory_used(skep).await;
    let attack = attacked.begin(skep, LIE).await;
    let answer = attacked.call(skep, "fork").await;
    eprintln!("a copy of a guest that lies: {answer:?}");
    if answer.status == 201 {
        has_an_identity_of_its_own_or_is_ended(skep, &answer.body["vms"][0], &attacked.vm).await;
    } else {
        answer.refused(503, "boot_failed");
    }
    assert_eq!(ids(&listed(skep).await), ids(&[attacked.vm.clone(), other.clone()]));
    eventually("the end of all captures", async || captures(skep) == 0).await;
    eventually("the memory of the copy", async || memory_used(skep).await == before).await;
    // While the attack goes on, another VM is copied.
    let copy = fork(skep, &other, &json!({})).await.remove(0);
    for vm in [&other, &copy] {
        assert_eq!(skep.output(pid_of(vm), "uname -n").await, host_name(vm));
    }
    attacked.end(skep, attack).await;
    assert_in_order(skep).await;
    for vm in [&other, &copy] {
        skep.delete(&path_of(vm)).await.ok(200);
    }
}

/// The memory that is reserved for VMs, in MiB.
async fn memory_used(skep: &Skep) -> u64 {
    skep.get("/api/swarm/status").await.ok(200)["capacity"]["memory_used_mb"].as_u64().unwrap()
}

/// Fails unless the server lists the copy as a VM of its own, or has ended it. Ends it.
async fn has_an_identity_of_its_own_or_is_ended(skep: &Skep, copy: &Value, original: &Value) {
    assert_eq!(copy["parent"], original["id"], "{copy}");
    for field in ["id", "ip", "pid"] {
        assert!(copy[field] != Value::Null && copy[field] != original[field], "{field}: {copy}, {original}");
    }
    let found = skep.get(&path_of(copy)).await;
    if found.status == 200 {
        for field in ["id", "ip", "pid", "parent"] {
            assert_eq!(found.body[field], copy[field], "{field}: {found:?}");
        }
    } else {
        found.refused(404, "unknown_vm");
    }
    let ended = skep.delete(&path_of(copy)).await;
    if ended.status != 200 {
        ended.refused(404, "unknown_vm");
    }
}

async fn the_agent_is_held(skep: &Skep, attacked: &mut Attacked) {
    let start = json!({"command": START_HOLD, "stdin": HOLD});
    let started = skep.exec_with(pid_of(&attacked.vm), &start).await;
    assert_eq!(started["exit_code"], 0, "{started}");
    attacked.call(skep, "fork").await.refused(504, "guest_timeout");
    // This waits for the agent, which goes on in the middle of a freeze whose caller has given up.
    attacked.runs_on(skep).await;
}
