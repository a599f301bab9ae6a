//! Calls at the same time: snapshots of one name, and the deletion of a snapshot from which VMs are being booted.

use std::fs;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    copies::{State, assert_goes_on, begin, path_of, pid_of, state},
    harness::{Answer, Skep, eventually},
    snapshots::{folder_of, folders, snapshot},
    takeover::assert_in_order,
};

/// How often a snapshot is deleted while VMs boot from it, and by how many callers they are booted.
const ROUNDS: u32 = 3;
const CALLERS: u32 = 3;

async fn named(skep: &Skep, name: &str) -> Vec<Value> {
    let list = skep.get("/api/templates").await.ok(200);
    let all = list["templates"].as_array().unwrap();
    all.iter().filter(|template| template["name"] == name).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_snapshots_with_one_name_at_once_exactly_one_is_taken() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let wanted = begin(&skep, &vms[0]).await;
    // Two of one VM, and one of another.
    let paths = [0, 0, 1].map(|vm| format!("{}/snapshot", path_of(&vms[vm])));
    let request = json!({"name": "twin"});
    let answers = join_all(paths.iter().map(|path| skep.post(path, &request))).await;
    let (taken, refused): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.status == 201);
    let ([taken], [first, second]) = (&taken[..], &refused[..]) else { panic!("{answers:?}") };
    for refused in [first, second] {
        let message = refused.refused(409, "name_taken");
        assert!(message.contains("`twin`"), "{message}");
    }
    let listed = named(&skep, "twin").await;
    assert_eq!((listed.len(), &listed[0]["id"]), (1, &taken.body["id"]), "{listed:?}");
    assert_eq!((&listed[0]["state"], folders(&skep)), (&json!("ready"), 1), "{listed:?}");
    // The only folder is complete, and has nothing of the others.
    for entry in fs::read_dir(folder_of(skep.data_dir.path(), &taken.body)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.starts_with('.'), "{name} was left");
    }
    // A later one is refused too, and the name is free again once the first is deleted.
    skep.post(&paths[2], &request).await.refused(409, "name_taken");
    assert_eq!(folders(&skep), 1);
    skep.delete("/api/templates/twin").await.ok(200);
    snapshot(&skep, &vms[0], "twin").await;
    assert_eq!(named(&skep, "twin").await.len(), 1);

    let original = &vms[0];
    skep.delete(&path_of(&vms[1])).await.ok(200);
    assert_goes_on(&skep, original, &wanted, 1).await;
    deleted_while_vms_boot(&skep, original, &wanted).await;
    skep.delete("/api/templates/twin").await.ok(200);
    eventually("the end of the files", async || folders(&skep) == 0).await;
    assert_in_order(&skep).await;
}

/// Callers boot and end VMs of a snapshot until another caller could delete it.
async fn deleted_while_vms_boot(skep: &Skep, original: &Value, wanted: &State) {
    let (_, from) = state(skep, original).await;
    for round in 0..ROUNDS {
        let doomed = snapshot(skep, original, "doomed").await;
        let callers = join_all((0..CALLERS).map(|caller| {
            let state = (caller == 0).then_some((wanted, from));
            boot_until_it_is_gone(skep, state)
        }));
        let (booted, ()) = tokio::join!(callers, delete_when_possible(skep, round));
        eprintln!("round {round}: {booted:?} VMs booted");
        skep.get("/api/templates/doomed").await.refused(404, "unknown_template");
        let folder = folder_of(skep.data_dir.path(), &doomed);
        eventually("the end of the files", async || !folder.exists()).await;
        assert_eq!(skep.count().await, 1);
    }
    assert_in_order(skep).await;
}

/// Boots VMs, which are complete, and ends them. Returns how many. The first one must have this state, if one is given.
async fn boot_until_it_is_gone(skep: &Skep, mut state: Option<(&State, u64)>) -> u32 {
    let mut booted = 0;
    loop {
        let answer = skep.post("/api/swarm/boot", &json!({"template": "doomed"})).await;
        if answer.status != 201 {
            let message = answer.refused(404, "unknown_template");
            assert!(message.contains("`doomed`"), "{message}");
            return booted;
        }
        booted += 1;
        let vm = &answer.body["vms"][0];
        assert_eq!(skep.output(pid_of(vm), "echo lives").await, "lives");
        if let Some((wanted, from)) = state.take() {
            assert_goes_on(skep, vm, wanted, from).await;
        }
        skep.delete(&path_of(vm)).await.ok(200);
    }
}

/// Deletes the snapshot as soon as no VM needs it. In each second round, not before a VM does.
async fn delete_when_possible(skep: &Skep, round: u32) {
    if round % 2 == 1 {
        eventually("a VM of the snapshot", async || skep.count().await > 1).await;
    }
    loop {
        let answer = skep.delete("/api/templates/doomed").await;
        if answer.status == 200 {
            return;
        }
        let message = answer.refused(409, "template_in_use");
        assert!(message.contains("vm_"), "{message}");
    }
}
