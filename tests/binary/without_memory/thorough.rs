//! Kills at each step of the start of a VM from its disk.

use reqwest::Method;
use serde_json::json;

use super::{FOUND, boot, folders, resume, run, to_disk};
use crate::{
    copies::path_of,
    harness::{Skep, eventually, temp_dir, try_send},
    steps::{Log, OPTIONS, Step, Victim},
    takeover::assert_in_order,
};

/// What the log says after each step, and who is killed then.
const KILLS: [(Step, Victim); 6] = [
    (&["boot of the guest, to be saved"], Victim::Keeper),
    (&["boot of the guest, to be saved"], Victim::Server),
    (&["a guest is booted from the disk of VM"], Victim::Server),
    (&["is restored from disk"], Victim::Server),
    (&["is restored from disk"], Victim::Keeper),
    (&["is resumed on record"], Victim::Keeper),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_a_vm_starts_from_its_disk_loses_nothing() {
    let mut skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let vm = boot(&skep, &json!({"name": "sleeper"})).await;
    for (round, (step, victim)) in KILLS.into_iter().enumerate() {
        eprintln!("{victim:?} killed after {step:?}");
        to_disk(&skep, &vm).await;
        let log = Log::from_now(&skep);
        let request = skep.request(Method::POST, &format!("{}/resume", path_of(&vm)));
        let request = tokio::spawn(try_send(request.json(&json!({"memory": false}))));
        skep = victim.kill_at(step, log, skep).await;
        let answered = request.await.unwrap().is_ok_and(|answer| answer.status == 200);
        let found = skep.get(&path_of(&vm)).await.ok(200);
        assert!(!answered || found["state"] == "running", "{found} after an answer");
        if found["state"] == "paused" {
            // It is there with all that it has.
            resume(&skep, &vm, &json!({})).await.ok(200);
        }
        assert!(run(&skep, &vm, FOUND).await.starts_with("kept\nwhole"));
        assert_in_order(&skep).await;
        if round == 0 {
            // What a killed keeper had begun to build is gone.
            eventually("no files", async || folders(skep.data_dir.path()).is_empty()).await;
        }
    }
}
