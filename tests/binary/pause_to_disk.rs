//! Pausing real VMs to disk: what a VM has is there again after its resume, whatever ended meanwhile.

mod boot_command;
mod reboot;
mod thorough;

use std::{collections::BTreeSet, fs, path::Path};

use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    copies::path_of,
    harness::{Skep, command, eventually, images::flip_a_bit, output_of, printed, remains_of_vms, send},
    takeover::{assert_in_order, listed},
};

/// Counts in a file in memory, and holds 256 KiB whose checksum it writes beside.
const WORK: &str = r#"
cat > /root/work.py <<'END'
import os, time, zlib
memory = os.urandom(256 << 10)
open('/dev/shm/before', 'w').write(f'{zlib.crc32(memory)}\n')
count = 0
while True:
    count += 1
    for name, number in (('count', count), ('sum', zlib.crc32(memory))):
        open(f'/dev/shm/{name}.new', 'w').write(f'{number}\n')
        os.rename(f'/dev/shm/{name}.new', f'/dev/shm/{name}')
    time.sleep(0.05)
END
echo on-disk > /root/kept; nohup python3 /root/work.py > /dev/null 2>&1 &
while [ ! -e /dev/shm/sum ]; do sleep 0.05; done
cat /etc/machine-id
"#;
/// Prints what a VM has, one line each, and its count a while later. It gives up waiting for a program that stands still.
const STATE: &str =
    "cat /etc/machine-id; uname -n; cat /root/kept; echo $KEPT; cat /dev/shm/before /dev/shm/sum
read first < /dev/shm/count; last=$first; tries=0
while [ $last -le $((first + 3)) ] && [ $tries -lt 300 ]; do
    tries=$((tries + 1)); sleep 0.1; read last < /dev/shm/count
done
echo $first; echo $last";
/// How far a guest's clock may be off after a request of a loaded machine.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// A VM with a program that works in memory.
struct Worker {
    id: String,
    record: Value,
    machine_id: String,
}

impl Worker {
    async fn boot(skep: &Skep, boot: &Value) -> Self {
        let booted = skep.post("/api/swarm/boot", boot).await.ok(201)["vms"][0].clone();
        let id = booted["id"].as_str().unwrap().to_owned();
        let machine_id = run(skep, &id, WORK).await;
        Self { id, record: booted, machine_id }
    }

    fn path(&self) -> String {
        format!("/api/swarm/vm/{}", self.id)
    }

    async fn pid(&self, skep: &Skep) -> u64 {
        skep.get(&self.path()).await.ok(200)["pid"].as_u64().unwrap()
    }

    async fn pause(&self, skep: &Skep) -> Value {
        let paused = skep.post(&format!("{}/pause", self.path()), &json!({"to": "disk"})).await.ok(200);
        assert_eq!((&paused["state"], &paused["paused_to"]), (&json!("paused"), &json!("disk")), "{paused}");
        assert_eq!(paused["pid"], Value::Null, "{paused}");
        paused
    }

    async fn resume(&self, skep: &Skep) -> Value {
        send(skep.request(Method::POST, &format!("{}/resume", self.path()))).await.ok(200)
    }

    async fn count(&self, skep: &Skep) -> u64 {
        run(skep, &self.id, "cat /dev/shm/count").await.parse().unwrap()
    }

    /// Fails unless the VM is what it was before its pause, and its program works on.
    async fn assert_unchanged(&self, skep: &Skep, count_before: u64) {
        let record = skep.get(&self.path()).await.ok(200);
        for field in ["id", "name", "ip", "started_at", "template", "metadata", "boot"] {
            assert_eq!(record[field], self.record[field], "{field}");
        }
        assert!(record["pid"].is_u64() && record["resumed_at"].is_string(), "{record}");
        let state = run(skep, &self.id, STATE).await;
        let [machine_id, name, kept, variable, before, now, first, last] =
            state.lines().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((machine_id, name), (self.machine_id.as_str(), self.id.replace('_', "-").as_str()));
        assert_eq!((kept, variable), ("on-disk", "variable"));
        assert_eq!(before, now, "the memory of the program has changed");
        let [first, last] = [first, last].map(|count| count.parse::<u64>().unwrap());
        assert!(first >= count_before, "it counted {count_before} before, and {first} now");
        assert!(last > first + 3, "{last} after {first}: the program stands still");
        let before = Timestamp::now();
        let clock: Timestamp = run(skep, &self.id, "date -u +%Y-%m-%dT%H:%M:%S.%NZ").await.parse().unwrap();
        let after = Timestamp::now();
        let near = before - CLOCK_TOLERANCE..=after + CLOCK_TOLERANCE;
        assert!(near.contains(&clock), "{before} {clock} {after}");
    }
}

async fn run(skep: &Skep, vm: &str, command: &str) -> String {
    let ran = skep.post(&format!("/api/swarm/vm/{vm}/exec"), &json!({"command": command})).await.ok(200);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().trim_end().to_owned()
}

fn boot_request(name: &str) -> Value {
    json!({"name": name, "env": {"KEPT": "variable"}, "metadata": {"a": 1}})
}

fn snapshots(data_dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(data_dir.join("templates")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("tpl_")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_on_disk_takes_no_memory_and_is_itself_again_unless_it_is_damaged() {
    let skep = Skep::start().await;
    let vm = Worker::boot(&skep, &boot_request("sleeper")).await;
    paused_in_memory_first(&skep, &vm).await;
    assert_in_order(&skep).await;
    // The pause of a VM that was resumed.
    by_the_command(&skep, &vm).await;
    changes_and_ends_on_disk(&skep, vm).await;
}

async fn paused_in_memory_first(skep: &Skep, vm: &Worker) {
    let used = |status: &Value| status["capacity"]["memory_used_mb"].as_u64().unwrap();
    let before = used(&skep.get("/api/swarm/status").await.ok(200));
    let count = vm.count(skep).await;
    let former = vm.pid(skep).await;
    skep.post(&format!("{}/pause", vm.path()), &json!({})).await.ok(200);
    vm.pause(skep).await;
    vm.pause(skep).await;
    let status = skep.get("/api/swarm/status").await.ok(200);
    assert!(used(&status) < before, "{status}");
    assert_eq!((&status["vms"], &status["count"]), (&json!([]), &json!(1)));
    for (kind, found) in remains_of_vms(skep.data_dir.path()) {
        assert!(!found.contains(&vm.id), "its {kind} is there");
    }
    assert_eq!(snapshots(skep.data_dir.path()).len(), 1);
    let refused = skep.post(&format!("{}/exec", vm.path()), &json!({"command": "true"})).await;
    assert!(refused.refused(409, "vm_paused").contains("resume it first"), "{refused:?}");
    skep.get(&format!("{}/metrics", vm.path())).await.refused(409, "vm_paused");
    assert_eq!(skep.get(&format!("/api/swarm/vm/{former}")).await.ok(200)["id"], vm.id.as_str());
    vm.resume(skep).await;
    vm.assert_unchanged(skep, count).await;
    eventually("no file of the pause", async || snapshots(skep.data_dir.path()).is_empty()).await;
}

async fn by_the_command(skep: &Skep, vm: &Worker) {
    let count = vm.count(skep).await;
    let run = |arguments: &[&str]| printed(&output_of(&mut command(skep, arguments)));
    assert!(run(&["pause", "sleeper", "--to", "disk"]).contains(&format!("- {} on disk", vm.id)));
    assert!(run(&["ps"]).contains("on disk"));
    let status: Value = serde_json::from_str(&run(&["ps", "--json"])).unwrap();
    assert_eq!((&status["vms"][0]["id"], &status["count"]), (&json!(vm.id), &json!(1)), "{status}");
    // A second VM, newer and running. Only the status has its usage.
    let awake = skep.boot(1).await.remove(0);
    eventually("the usage of the VM", async || {
        let status: Value = serde_json::from_str(&run(&["ps", "--json"])).unwrap();
        let vms = status["vms"].as_array().unwrap();
        let found: Vec<&Value> = vms.iter().map(|listed| &listed["id"]).collect();
        assert_eq!(found, [&json!(vm.id), &awake["id"]]);
        vms[1]["usage"].is_object()
    })
    .await;
    skep.delete(&path_of(&awake)).await.ok(200);
    assert!(run(&["resume", "sleeper"]).contains("running"));
    vm.assert_unchanged(skep, count).await;
}

async fn changes_and_ends_on_disk(skep: &Skep, vm: Worker) {
    vm.pause(skep).await;
    let change = json!({"metadata": {"b": 2}, "ttl_ms": 3_600_000});
    let changed = send(skep.request(Method::PATCH, &vm.path()).json(&change)).await.ok(200);
    assert_eq!((&changed["metadata"], &changed["state"]), (&json!({"b": 2}), &json!("paused")));
    let taken = skep.post("/api/swarm/boot", &json!({"name": "sleeper"})).await;
    taken.refused(409, "name_taken");
    for query in ["state=paused", "name=sleeper", "metadata.b=2"] {
        let list = skep.get(&format!("/api/vms?{query}")).await.ok(200);
        assert_eq!(list["vms"][0]["id"], vm.id.as_str(), "{query}");
    }
    // It can still be deleted.
    damage_is_found_before_it_runs(skep, &vm).await;
    // Beside it: one that expires while it is on disk, and one that `cleanup` ends.
    let others = skep.boot(2).await;
    for other in &others {
        let paused = skep.post(&format!("{}/pause", path_of(other)), &json!({"to": "disk"})).await;
        assert_eq!(paused.ok(200)["paused_to"], "disk");
    }
    let deleted = skep.delete(&vm.path()).await.ok(200);
    assert_eq!((&deleted["terminated"], &deleted["pid"]), (&json!(true), &Value::Null));
    skep.get(&vm.path()).await.refused(404, "unknown_vm");
    assert_eq!(snapshots(skep.data_dir.path()).len(), 2);
    send(skep.request(Method::PATCH, &path_of(&others[0])).json(&json!({"ttl_ms": 1}))).await.ok(200);
    eventually("the expiry", async || listed(skep).await.len() == 1).await;
    assert_eq!(skep.post("/api/swarm/cleanup", &json!({})).await.ok(200)["terminated"], 1);
    // The server removes an expired VM from the list first, and its files afterwards, in a task of its own.
    eventually("no file of the expired VM", async || snapshots(skep.data_dir.path()).is_empty()).await;
}

async fn damage_is_found_before_it_runs(skep: &Skep, vm: &Worker) {
    let stored: Vec<String> = snapshots(skep.data_dir.path()).into_iter().collect();
    let [own] = stored.as_slice() else { panic!("{stored:?}") };
    let folder = skep.data_dir.path().join("templates").join(own);
    let mut dirs = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
    let dir = dirs.find(|path| path.is_dir()).unwrap();
    flip_a_bit(&dir.join("delta"));
    let refused = send(skep.request(Method::POST, &format!("{}/resume", vm.path()))).await;
    assert!(refused.refused(422, "template_damaged").contains("delta"), "{refused:?}");
    assert_eq!(skep.get(&vm.path()).await.ok(200)["paused_to"], "disk");
}
