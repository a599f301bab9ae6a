//! An update of QEMU while a server runs.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    copies::{path_of, pid_of},
    harness::{Skep, eventually, send, temp_dir},
    own_usr::{OTHER, QEMU, engine, install, with_own_usr},
};

async fn assert_runs(skep: &Skep, vm: &Value) {
    assert_eq!(skep.output(pid_of(vm), "cat /dev/shm/word").await, "kept");
}

async fn boot(skep: &Skep) -> Value {
    let vm = skep.boot(1).await.remove(0);
    skep.output(pid_of(&vm), "echo kept > /dev/shm/word").await;
    vm
}

#[tokio::test(flavor = "multi_thread")]
async fn no_vm_is_started_by_another_version_of_qemu_than_that_of_its_template() {
    let folder = temp_dir();
    let other = folder.path().join("other");
    fs::write(&other, OTHER).unwrap();
    let skep = Skep::start_by(&with_own_usr(folder.path()), temp_dir(), |_| ()).await;
    let (running, sleeper) = (boot(&skep).await, boot(&skep).await);
    skep.post(&format!("{}/pause", path_of(&sleeper)), &json!({"to": "disk"})).await.ok(200);

    // Another file of the same version, as a rebuild is.
    install(&skep, Path::new(QEMU));
    let rebuilt = boot(&skep).await;

    install(&skep, &other);
    let engine = engine(&skep).await;
    assert!(engine.starts_with("qemu "), "{engine}");
    let (fork, resume) = (format!("{}/fork", path_of(&running)), format!("{}/resume", path_of(&sleeper)));
    for path in ["/api/swarm/boot", fork.as_str(), resume.as_str()] {
        let refused = skep.post(path, &json!({})).await;
        let message = refused.refused(409, "template_not_ready");
        for part in [engine.as_str(), "qemu 1.2.3", "systemctl restart skep"] {
            assert!(message.contains(part), "{path}: {part}: {message}");
        }
    }
    for vm in [&running, &rebuilt] {
        assert_runs(&skep, vm).await;
    }
    assert_eq!(skep.get(&path_of(&sleeper)).await.ok(200)["paused_to"], "disk");

    // The control: VMs are started by the version of before, if that is installed again.
    install(&skep, Path::new(QEMU));
    skep.post(&resume, &json!({})).await.ok(200);
    let resumed = skep.get(&path_of(&sleeper)).await.ok(200);
    assert_runs(&skep, &resumed).await;
    boot(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_memory_is_stored_that_only_the_qemu_of_before_can_load() {
    let folder = temp_dir();
    let other = folder.path().join("other");
    fs::write(&other, OTHER).unwrap();
    let skep = Skep::start_by(&with_own_usr(folder.path()), temp_dir(), |_| ()).await;
    let (running, paused, idle) = (boot(&skep).await, boot(&skep).await, boot(&skep).await);
    skep.post(&format!("{}/pause", path_of(&paused)), &json!({})).await.ok(200);

    install(&skep, &other);
    let engine = engine(&skep).await;
    let snapshot = format!("{}/snapshot", path_of(&running));
    let to_disk = |vm: &Value| (format!("{}/pause", path_of(vm)), json!({"to": "disk"}));
    let requests = [(snapshot.clone(), json!({"name": "stored"})), to_disk(&running), to_disk(&paused)];
    for (path, body) in &requests {
        let refused = skep.post(path, body).await;
        let message = refused.refused(409, "template_not_ready");
        for part in [engine.as_str(), "qemu 1.2.3", "pause it to memory", "systemctl restart skep"] {
            assert!(message.contains(part), "{path}: {part}: {message}");
        }
    }
    skep.get("/api/templates/stored").await.refused(404, "unknown_template");
    assert_eq!(skep.get(&path_of(&paused)).await.ok(200)["paused_to"], "memory");
    assert_runs(&skep, &running).await;

    let rule = json!({"idle_timeout_ms": 1000, "on_idle": "pause_to_disk"});
    send(skep.request(Method::PATCH, &path_of(&idle)).json(&rule)).await.ok(200);
    let warning = format!("VM {} is not paused to disk", idle["id"].as_str().unwrap());
    eventually("the attempt of the idle rule", async || skep.log().contains(&warning)).await;
    assert_eq!(skep.get(&path_of(&idle)).await.ok(200)["state"], "running");

    // Control: after the first version is installed again, all of them succeed.
    install(&skep, Path::new(QEMU));
    eventually("the pause of the idle VM", async || {
        skep.get(&path_of(&idle)).await.ok(200)["paused_to"] == "disk"
    })
    .await;
    skep.post(&snapshot, &json!({"name": "stored"})).await.ok(201);
    for vm in [&running, &paused] {
        let (path, body) = to_disk(vm);
        skep.post(&path, &body).await.ok(200);
        skep.post(&format!("{}/resume", path_of(vm)), &json!({})).await.ok(200);
        let resumed = skep.get(&path_of(vm)).await.ok(200);
        assert_runs(&skep, &resumed).await;
    }
}
