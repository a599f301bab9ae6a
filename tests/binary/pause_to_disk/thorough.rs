//! Kills of server or keeper at each step of a pause to disk, of a resume, and of the end of a VM on disk: the VM runs or is on
//! disk then, with its data, or has ended, and nothing else is left.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::snapshots;
use crate::{
    copies::{State, assert_goes_on, begin, path_of, state},
    harness::{Skep, eventually, remains_of_vms, send, temp_dir, try_send},
    steps::{Log, OPTIONS, Step, Victim},
    takeover::{assert_in_order, ids, listed},
};

/// What the log says after each step.
const STEPS_OF_PAUSE: [Step; 12] = [
    &["the programs of VM", "are frozen"],
    &["the processors of VM", "are stopped for its pause"],
    &["the devices of VM", "are saved"],
    &["is copied for its pause"],
    &["the address of VM", "is reserved"],
    &["the recipe of the snapshot", "is written"],
    &["the files of a snapshot are written"],
    &["the files of the snapshot", "are complete"],
    &["is stored on disk"],
    &["is on disk on record"],
    &["the VMM of VM", "which is on disk, has ended"],
    &["is paused to disk"],
];
const STEPS_OF_RESUME: [Step; 5] = [
    &["is launched from disk"],
    &["runs again"],
    &["is restored from disk"],
    &["is resumed on record"],
    &["is resumed", "INFO"],
];

/// Steps of the end of a VM on disk. The server logs the first line before it records the end.
const STEPS_OF_END: [Step; 2] = [&["INFO", "VM vm_", " ended"], &["the end of VM", "is on record"]];

/// The VM, and what it must have.
struct Kept {
    vm: Value,
    state: State,
    /// The last number of its program that was seen.
    count: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_leaves_the_vm_running_or_on_disk_and_nothing_else() {
    let mut skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let vm = skep.boot(1).await.remove(0);
    let state_before = begin(&skep, &vm).await;
    let count = state(&skep, &vm).await.1;
    let mut kept = Kept { vm, state: state_before, count };
    let of_pause = STEPS_OF_PAUSE.map(|step| ("pause", step));
    let of_resume = STEPS_OF_RESUME.map(|step| ("resume", step));
    for (verb, step) in of_pause.into_iter().chain(of_resume) {
        for victim in [Victim::Server, Victim::Keeper] {
            eprintln!("{verb}, {victim:?} killed after {step:?}");
            skep = round(skep, &mut kept, verb, step, victim).await;
        }
    }
    // The control: without a kill, the VM is on disk and comes back.
    to_disk(&skep, &kept.vm).await;
    resume(&skep, &kept.vm).await;
    is_running(&skep, &mut kept).await;
    let skep = ends(skep, kept.vm).await;
    assert_in_order(&skep).await;
}

/// Kills during the end of a VM on disk leave no record without files, and no files without a record.
async fn ends(mut skep: Skep, vm: Value) -> Skep {
    // A VM that has not ended after a round is that of the next one.
    let mut left = Some(vm);
    for step in STEPS_OF_END {
        for victim in [Victim::Server, Victim::Keeper] {
            eprintln!("end, {victim:?} killed after {step:?}");
            let vm = match left.take() {
                Some(vm) => vm,
                None => skep.boot(1).await.remove(0),
            };
            (skep, left) = round_of_end(skep, vm, step, victim).await;
        }
    }
    // The control: without a kill, it ends with its files.
    let vm = match left {
        Some(vm) => vm,
        None => skep.boot(1).await.remove(0),
    };
    to_disk(&skep, &vm).await;
    skep.delete(&path_of(&vm)).await.ok(200);
    assert_eq!(snapshots(skep.data_dir.path()).len(), 0);
    skep
}

/// Returns the VM, which runs again, if its end was not recorded.
async fn round_of_end(skep: Skep, vm: Value, step: Step, victim: Victim) -> (Skep, Option<Value>) {
    to_disk(&skep, &vm).await;
    let log = Log::from_now(&skep);
    let request = tokio::spawn(try_send(skep.request(Method::DELETE, &path_of(&vm))));
    let skep = victim.kill_at(step, log, skep).await;
    let answered = request.await.unwrap().is_ok_and(|answer| answer.status == 200);
    let found = skep.get(&path_of(&vm)).await;
    let is_left = found.status == 200;
    if is_left {
        assert!(!answered, "{found:?} after its end was answered");
        is_on_disk(&skep, &found.body).await;
        resume(&skep, &vm).await;
    } else {
        found.refused(404, "unknown_vm");
    }
    eventually("the end of the files", async || snapshots(skep.data_dir.path()).is_empty()).await;
    assert_in_order(&skep).await;
    (skep, is_left.then_some(vm))
}

async fn round(skep: Skep, kept: &mut Kept, verb: &str, step: Step, victim: Victim) -> Skep {
    let (path, body) = (path_of(&kept.vm), if verb == "pause" { json!({"to": "disk"}) } else { json!({}) });
    if verb == "resume" {
        to_disk(&skep, &kept.vm).await;
    }
    let log = Log::from_now(&skep);
    let request = skep.request(Method::POST, &format!("{path}/{verb}")).json(&body);
    let request = tokio::spawn(try_send(request));
    let skep = victim.kill_at(step, log, skep).await;
    let answered = request.await.unwrap().is_ok_and(|answer| answer.status == 200);
    assert_eq!(ids(&listed(&skep).await), ids(std::slice::from_ref(&kept.vm)));
    let found = skep.get(&path).await.ok(200);
    let wanted = if verb == "pause" { "paused" } else { "running" };
    assert!(!answered || found["state"] == wanted, "{found} after an answered {verb}");
    if found["state"] == "paused" {
        is_on_disk(&skep, &found).await;
        resume(&skep, &kept.vm).await;
    }
    is_running(&skep, kept).await;
    skep
}

async fn to_disk(skep: &Skep, vm: &Value) {
    let paused = skep.post(&format!("{}/pause", path_of(vm)), &json!({"to": "disk"})).await.ok(200);
    assert_eq!(paused["paused_to"], "disk", "{paused}");
}

async fn resume(skep: &Skep, vm: &Value) {
    send(skep.request(Method::POST, &format!("{}/resume", path_of(vm)))).await.ok(200);
}

/// It has one snapshot, and nothing else that VMs have.
async fn is_on_disk(skep: &Skep, vm: &Value) {
    assert_eq!((&vm["paused_to"], &vm["pid"]), (&json!("disk"), &Value::Null), "{vm}");
    for (kind, _) in remains_of_vms(skep.data_dir.path()) {
        eventually(&format!("no {kind} of a VM on disk"), async || {
            let found = remains_of_vms(skep.data_dir.path());
            found.into_iter().any(|(of, found)| of == kind && found == BTreeSet::new())
        })
        .await;
    }
    assert_eq!(snapshots(skep.data_dir.path()).len(), 1);
}

/// It is the VM that it was, and has no snapshot any more.
async fn is_running(skep: &Skep, kept: &mut Kept) {
    let running = skep.get(&path_of(&kept.vm)).await.ok(200);
    for field in ["id", "ip", "started_at", "template"] {
        assert_eq!(running[field], kept.vm[field], "{field}");
    }
    kept.count = assert_goes_on(skep, &running, &kept.state, kept.count).await;
    eventually("the end of the files", async || snapshots(skep.data_dir.path()).is_empty()).await;
    assert_in_order(skep).await;
}
