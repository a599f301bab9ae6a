//! Snapshots of another machine: another QEMU, another processor, another clock. Their memory is never loaded.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};
use skep_template::{MANIFEST, read_manifest};

use crate::{
    copies::{assert_goes_on, begin, path_of, state},
    harness::{Skep, eventually, images::images_with_template, send, temp_dir},
    snapshots::{boot, files_of, folders, snapshot},
    takeover::assert_in_order,
};

pub(super) const OTHER_ENGINE: &str = "qemu 6.0.0";

/// Changes one input that a manifest names, as if the snapshot had been made where it has this value.
pub(super) fn change_input(dir: &Path, name: &str, value: &str) {
    let mut manifest = read_manifest(dir).unwrap();
    manifest.inputs.insert(name.to_owned(), value.to_owned());
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
}

/// Makes `base` what another QEMU baked, which is found by another key.
fn rename_base(dir: &Path) {
    let mut manifest = read_manifest(dir).unwrap();
    manifest.key = "0123456789abcdef".to_owned();
    manifest.inputs.insert("engine".to_owned(), OTHER_ENGINE.to_owned());
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
    fs::rename(dir, dir.with_file_name(&manifest.key)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_machine_made_is_outdated_and_its_memory_is_never_loaded() {
    let (images, base) = images_with_template();
    let options = ["--image-dir", images.path().to_str().unwrap()];
    let skep = Skep::start_on(temp_dir(), &options).await;
    let original = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &original).await;
    let (_, from) = state(&skep, &original).await;
    let intact = snapshot(&skep, &original, "intact").await;
    let changes = [
        ("of-engine", "engine", OTHER_ENGINE),
        ("of-processor", "processor", "Model 5 (0123)"),
        ("of-clock", "tsc_khz", "1234567"),
    ];
    let mut stored = Vec::new();
    for (name, _, _) in changes {
        stored.push(snapshot(&skep, &original, name).await);
    }
    let pause = skep.post(&format!("{}/pause", path_of(&original)), &json!({"to": "disk"})).await;
    assert_eq!(pause.ok(200)["paused_to"], "disk");
    let data_dir = skep.stop();
    let all = fs::read_dir(data_dir.path().join("templates")).unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let of_pause = names.filter(|id| stored.iter().chain([&intact]).all(|one| one["id"] != id.as_str()));
    let [of_pause] = of_pause.collect::<Vec<_>>().try_into().unwrap();
    for (template, (_, input, value)) in stored.iter().zip(changes) {
        change_input(&files_of(data_dir.path(), template), input, value);
    }
    change_input(&files_of(data_dir.path(), &json!({"id": of_pause})), "engine", OTHER_ENGINE);
    rename_base(&base);

    let skep = Skep::start_on(data_dir, &options).await;
    for (name, _, value) in changes {
        is_outdated(&skep, name, value).await;
    }
    is_not_resumed(&skep, &original).await;
    assert_eq!(skep.vmms(), Vec::<u32>::new(), "something was launched");
    // `base` was baked again, and a snapshot of its former VM has the former files.
    let log = skep.log();
    let rebuilt = format!("the template `base` was baked for {OTHER_ENGINE}, this machine has qemu ");
    assert!(log.contains(&rebuilt) && base.is_dir(), "{log}");
    let vm = boot(&skep, "intact", 1).await.remove(0);
    assert_goes_on(&skep, &vm, &wanted, from).await;
    skep.boot_one().await;

    for (name, _, _) in changes {
        skep.delete(&format!("/api/templates/{name}")).await.ok(200);
    }
    skep.delete(&path_of(&original)).await.ok(200);
    eventually("the end of the files", async || folders(&skep) == 1).await;
    assert_in_order(&skep).await;
    assert!(!skep.log().lines().any(|line| line.contains("tpl_") && line.contains("built again")));
}

/// The log, the record and the refusals name what differs, and what can be done.
async fn is_outdated(skep: &Skep, name: &str, value: &str) {
    let path = format!("/api/templates/{name}");
    let way_out = "its memory cannot be used; a boot without it (`\"memory\": false`)";
    let is_refused = async |path: &str, body: Value| {
        let refused = skep.post(path, &body).await;
        let message = refused.refused(409, "template_not_ready").to_owned();
        assert!(message.contains(value) && message.contains(way_out), "{message}");
    };
    // By the keeper, or by the record.
    is_refused("/api/swarm/boot", json!({"template": name})).await;
    eventually("the record", async || skep.get(&path).await.ok(200)["state"] == "outdated").await;
    let error = skep.get(&path).await.ok(200)["error"].as_str().unwrap().to_owned();
    assert!(error.contains(value) && error.contains("this machine has"), "{error}");
    is_refused("/api/swarm/boot", json!({"template": name, "count": 2})).await;
    is_refused("/api/templates", json!({"name": "child", "from": name})).await;
    let log = skep.log();
    let line = log.lines().find(|line| line.contains(&format!("`{name}`")) && line.contains("outdated"));
    assert!(line.is_some_and(|line| line.contains(way_out) && line.contains(value)), "{line:?}");
}

/// A VM on disk stays there.
pub(super) async fn is_not_resumed(skep: &Skep, vm: &Value) {
    for _ in 0..2 {
        let refused = send(skep.request(Method::POST, &format!("{}/resume", path_of(vm)))).await;
        let message = refused.refused(409, "template_not_ready");
        assert!(message.contains(OTHER_ENGINE) && message.contains("its memory cannot be used"), "{message}");
        assert!(!message.contains("tpl_"), "callers do not know the snapshot: {message}");
        let record = skep.get(&path_of(vm)).await.ok(200);
        assert_eq!((&record["state"], &record["paused_to"]), (&json!("paused"), &json!("disk")));
    }
}
