//! Disks that fill during a copy of a VM: at each step the call is refused, the VM runs on with its memory and files, nothing is
//! left, and the call succeeds when there is room again.

use std::{fs, path::PathBuf, process::Command};

use reqwest::Method;
use rustix::fs::statvfs;
use serde_json::{Value, json};

use super::with_small_disks;
use crate::{
    copies::{State, assert_goes_on, begin, fork, path_of, pid_of, state},
    harness::{Answer, Skep, eventually, remains_of_vms, send},
    takeover::{ids, listed},
};

/// Where disk layers are, and where snapshots are stored. The rest of the data directory is on a large disk: a server that has
/// little space left there does not even begin.
const LAYERS: &str = "keeper/layers";
const TEMPLATES: &str = "templates";
/// Room for all that this test stores at a time.
const ENOUGH: &std::ffi::CStr = c"size=2g,mode=700";
const ENOUGH_BYTES: u64 = 2 << 30;
/// A file of the test that occupies one page: a disk of no size would have no limit.
const OCCUPIED: &str = "occupied";
const OCCUPIED_BYTES: u64 = 4096;
/// Makes a disk layer so large that the size of the other files of a snapshot matters little.
const MORE_FILES: &str = "head -c 24M /dev/urandom > /root/large; sync";

/// A small disk that only the server sees.
struct Disk {
    keeper: String,
    path: PathBuf,
}

impl Disk {
    fn of(skep: &Skep, below: &str) -> Self {
        let disk = Self { keeper: skep.pid().to_string(), path: skep.data_dir.path().join(below) };
        fs::write(disk.seen().join(OCCUPIED), [1]).unwrap();
        disk
    }

    /// The path of it for this process.
    fn seen(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.keeper, self.path.display()))
    }

    /// By the server, in bytes.
    fn used(&self) -> u64 {
        let found = statvfs(self.seen()).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize - OCCUPIED_BYTES
    }

    /// Changes its size so that this much is left.
    fn leave(&self, bytes: u64) {
        self.resize(OCCUPIED_BYTES + self.used() + bytes);
    }

    fn leave_enough(&self) {
        self.resize(ENOUGH_BYTES);
    }

    fn resize(&self, bytes: u64) {
        let options = format!("remount,size={bytes}");
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.keeper, "-m", "mount", "-o", &options]).arg(&self.path);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{options}: {output:?}");
    }

    fn entries(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.seen()).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| !path.ends_with(OCCUPIED)).collect()
    }
}

/// A VM that is copied, and what it must keep.
struct Original {
    vm: Value,
    /// The disk for snapshots.
    templates: Disk,
    wanted: State,
    counted: u64,
}

impl Original {
    async fn call(&self, skep: &Skep, verb: &str, body: &Value) -> Answer {
        let path = format!("{}/{verb}", path_of(&self.vm));
        send(skep.request(Method::POST, &path).json(body)).await
    }

    async fn snapshot(&self, skep: &Skep) -> Answer {
        self.call(skep, "snapshot", &json!({"name": "stored"})).await
    }

    async fn pause(&self, skep: &Skep) -> Answer {
        self.call(skep, "pause", &json!({"to": "disk"})).await
    }

    /// Fails unless the call was refused for lack of space, nothing of it is left and the VM runs on.
    async fn is_refused(&mut self, skep: &Skep, what: &str, answer: &Answer) {
        let message = answer.refused(503, "no_capacity");
        eprintln!("{what}: {message}");
        assert!(message.contains("end some VMs"), "{what}: {message}");
        let templates = skep.get("/api/templates").await.ok(200);
        let names: Vec<&Value> =
            templates["templates"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["base"], "{what}");
        assert_eq!(self.templates.entries(), Vec::<PathBuf>::new(), "{what}");
        let all = listed(skep).await;
        assert_eq!((all.len(), &all[0]["state"]), (1, &json!("running")), "{what}: {all:?}");
        for (kind, found) in remains_of_vms(skep.data_dir.path()) {
            assert_eq!(found, ids(&all), "{what}: {kind}");
        }
        self.runs_on(skep, what).await;
    }

    /// Its program answers, so it was thawed, and counts.
    async fn runs_on(&mut self, skep: &Skep, what: &str) {
        let (found, counted) = state(skep, &self.vm).await;
        assert_eq!(found, self.wanted, "{what}");
        assert!(counted >= self.counted, "{what}: {counted} after {}", self.counted);
        self.counted = counted;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_fill_a_disk_are_refused_and_leave_nothing() {
    let (skep, _) = with_small_disks(&[LAYERS, TEMPLATES], ENOUGH).await;
    let vm = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &vm).await;
    skep.output(pid_of(&vm), MORE_FILES).await;
    let (layers, templates) = (Disk::of(&skep, LAYERS), Disk::of(&skep, TEMPLATES));
    let mut original = Original { vm, wanted, counted: 1, templates };
    let layer_bytes = layers.used();

    // The control, which shows how large a snapshot is.
    original.snapshot(&skep).await.ok(201);
    let stored_bytes = original.templates.used();
    skep.delete("/api/templates/stored").await.ok(200);
    eventually("the end of the files", async || original.templates.entries().is_empty()).await;
    eprintln!("the layer has {layer_bytes} bytes, a snapshot {stored_bytes}");

    stores_that_fill_the_disk(&skep, &mut original, stored_bytes, layer_bytes).await;
    copies_of_the_layer_that_fill_the_disk(&skep, &mut original, &layers, layer_bytes).await;
    resumes_that_fill_the_disk(&skep, &mut original, &layers, layer_bytes).await;

    // With room again all succeed.
    original.snapshot(&skep).await.ok(201);
    let booted = skep.post("/api/swarm/boot", &json!({"template": "stored"})).await.ok(201);
    let forked = fork(&skep, &original.vm, &json!({})).await;
    for copy in [&booted["vms"][0], &forked[0]] {
        assert_goes_on(&skep, copy, &original.wanted, original.counted).await;
        skep.delete(&path_of(copy)).await.ok(200);
    }
    skep.delete("/api/templates/stored").await.ok(200);
    original.runs_on(&skep, "the end").await;
}

/// The files of a snapshot are written in this order: recipe, kernel, initial ramdisk, root file system, memory, devices, changed
/// pages, disk layer, manifest.
async fn stores_that_fill_the_disk(
    skep: &Skep,
    original: &mut Original,
    stored_bytes: u64,
    layer_bytes: u64,
) {
    for left in [0, 1 << 20, stored_bytes / 2, stored_bytes - layer_bytes / 2] {
        original.templates.leave(left);
        let answer = original.snapshot(skep).await;
        original.is_refused(skep, &format!("a snapshot with {left} bytes for its files"), &answer).await;
        let answer = original.pause(skep).await;
        original.is_refused(skep, &format!("a pause with {left} bytes for its files"), &answer).await;
        assert_eq!(original.templates.used(), 0, "{left}");
    }
    original.templates.leave_enough();
}

async fn copies_of_the_layer_that_fill_the_disk(
    skep: &Skep,
    original: &mut Original,
    disk: &Disk,
    layer_bytes: u64,
) {
    let (one, two) = (json!({}), json!({"count": 2}));
    let before = disk.used();
    for left in [0, layer_bytes / 2] {
        disk.leave(left);
        for (verb, body) in [("snapshot", json!({"name": "stored"})), ("fork", one.clone())] {
            let answer = original.call(skep, verb, &body).await;
            original.is_refused(skep, &format!("a {verb} with {left} bytes for layers"), &answer).await;
        }
        let answer = original.pause(skep).await;
        original.is_refused(skep, &format!("a pause with {left} bytes for layers"), &answer).await;
    }
    // Room for the copy, and for one VM of it.
    for (left, body) in [(layer_bytes * 3 / 2, one), (layer_bytes * 5 / 2, two)] {
        disk.leave(left);
        let answer = original.call(skep, "fork", &body).await;
        original.is_refused(skep, &format!("a fork with {left} bytes for layers"), &answer).await;
    }
    eprintln!("{before} bytes of layers before, {} after", disk.used());
    disk.leave_enough();
}

/// The VM stays on disk.
async fn resumes_that_fill_the_disk(skep: &Skep, original: &mut Original, disk: &Disk, layer_bytes: u64) {
    assert_eq!(original.pause(skep).await.ok(200)["paused_to"], "disk");
    for left in [0, layer_bytes / 2] {
        disk.leave(left);
        let answer = original.call(skep, "resume", &json!({})).await;
        let message = answer.refused(503, "no_capacity");
        assert!(message.contains("disk space"), "{message}");
        let record = skep.get(&path_of(&original.vm)).await.ok(200);
        assert_eq!((&record["state"], &record["paused_to"]), (&json!("paused"), &json!("disk")), "{record}");
        assert_eq!((skep.vmms(), disk.used()), (Vec::new(), 0), "{left}");
    }
    disk.leave_enough();
    original.vm = original.call(skep, "resume", &json!({})).await.ok(200);
    original.runs_on(skep, "a resume").await;
}
