//! An update of skep while VMs run: servers and guest agents of an earlier revision are its real ones. By
//! `make update-test`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use skep_channel::{FIRST_PROTOCOL, PROTOCOL, UnsupportedProtocol};

use crate::{
    copies::{path_of, pid_of},
    harness::{
        Skep, command, images::Images, images::images_with, output_of, remains_of, remains_of_vms, temp_dir,
    },
    takeover::{assert_in_order, ids, listed},
};

/// How the earlier server ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// As `systemctl restart` ends it after an update of the package.
    Sigterm,
    Killed,
}

fn earlier_binary() -> PathBuf {
    let Some(path) = std::env::var_os("SKEP_EARLIER_BINARY") else {
        panic!("SKEP_EARLIER_BINARY is not set: run `make update-test`");
    };
    path.into()
}

/// The protocol of the guest agents in the only template of an image directory.
fn protocol_of_template(images: &Path) -> u32 {
    let templates: Vec<_> = fs::read_dir(images.join("base")).unwrap().collect();
    let [Ok(template)] = &templates[..] else { panic!("one template: {templates:?}") };
    let manifest = fs::read(template.path().join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    manifest["protocol"].as_u64().map_or(FIRST_PROTOCOL, |protocol| u32::try_from(protocol).unwrap())
}

/// A server of the earlier revision with VMs, in an image directory of its own, which the update also uses.
async fn earlier_server() -> (Skep, Images) {
    let images = images_with(&[Path::new(".cache")]);
    let options = |command: &mut Command| _ = command.arg("--image-dir").arg(images.path());
    let skep = Skep::start_by(&earlier_binary(), temp_dir(), options).await;
    (skep, images)
}

/// Starts the binary under test on what the earlier server left.
async fn update(earlier: Skep, end: End, images: &Images) -> Skep {
    let (on_disk, with_process): (Vec<_>, Vec<_>) =
        listed(&earlier).await.into_iter().partition(|vm| vm["paused_to"] == "disk");
    println!("{end:?}: {} VMs with a process and {} on disk", with_process.len(), on_disk.len());
    let kept = ids(&with_process);
    let stopped = match end {
        End::Sigterm => earlier.stop_and_leave_vms(),
        End::Killed => earlier.crash(),
    };
    let [.., (_, processes)] = remains_of_vms(stopped.path());
    assert_eq!(processes, kept, "{end:?}: VMs that ended with their server prove nothing");
    stopped.start_with(&["--image-dir", images.path().to_str().unwrap()]).await
}

fn ends(skep: &Skep) -> Vec<Value> {
    let arguments = ["events", "--from-start", "--type", "vm.ended", "--json", "--count", "1"];
    let Output { status, stdout, stderr } = output_of(&mut command(skep, &arguments));
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks that the VM ended, that its owner and the log get the reason, and that nothing is left of it.
async fn assert_lost(skep: &Skep, vm: &Value, unsupported: UnsupportedProtocol, end: End) {
    let (id, pid) = (vm["id"].as_str().unwrap(), vm["pid"].as_u64().unwrap());
    for path in [format!("/api/swarm/vm/{id}"), format!("/api/swarm/vm/{pid}")] {
        skep.get(&path).await.refused(404, "unknown_vm");
    }
    let exec = skep.post(&format!("/api/swarm/vm/{id}/exec"), &json!({"command": "true"})).await;
    exec.refused(404, "unknown_vm");
    let [ended] = &ends(skep)[..] else { panic!("{end:?}: one VM ended") };
    assert_eq!((&ended["vm"], &ended["pid"], &ended["reason"]), (&vm["id"], &vm["pid"], &json!("lost")));
    let log = skep.log();
    let reason = unsupported.to_string();
    assert_eq!(ended["message"], json!(reason), "{ended}");
    assert!(log.lines().any(|line| line.contains(id) && line.contains(&reason)), "{reason}: {log}");
    assert_eq!(listed(skep).await, Vec::<Value>::new());
    assert_in_order(skep).await;
}

/// Whether the earlier revision pauses VMs, to memory and to disk, and stores snapshots of them.
fn earlier_has_pauses() -> bool {
    ["pause", "snapshot"].iter().all(|verb| {
        let help = Command::new(earlier_binary()).args([verb, "--help"]).output().unwrap();
        help.status.success()
            && (*verb == "snapshot" || String::from_utf8_lossy(&help.stdout).contains("--to"))
    })
}

/// Writes to disk and memory of three VMs. Pauses one of them in memory and one to disk, and stores the third one as the
/// snapshot `kept`. Returns the first two.
async fn pause_and_store(earlier: &Skep) -> [Value; 2] {
    let vms: [Value; 3] = earlier.boot(3).await.try_into().unwrap();
    for vm in &vms {
        earlier.output(pid_of(vm), "echo before > /root/file; echo before > /dev/shm/file").await;
    }
    let [in_memory, on_disk, original] = vms;
    earlier.post(&format!("{}/pause", path_of(&in_memory)), &json!({})).await.ok(200);
    earlier.post(&format!("{}/pause", path_of(&on_disk)), &json!({"to": "disk"})).await.ok(200);
    earlier.post(&format!("{}/snapshot", path_of(&original)), &json!({"name": "kept"})).await.ok(201);
    [in_memory, on_disk]
}

/// Resumes the VMs and boots one of the snapshot. Each has what was in memory and on disk.
async fn assert_go_on(skep: &Skep, paused: [Value; 2]) {
    for (vm, to) in paused.iter().zip(["memory", "disk"]) {
        assert_eq!(skep.get(&path_of(vm)).await.ok(200)["paused_to"], to, "{vm}");
        skep.post(&format!("{}/resume", path_of(vm)), &json!({})).await.ok(200);
    }
    let of_snapshot = skep.post("/api/swarm/boot", &json!({"template": "kept"})).await.ok(201);
    for path in paused.iter().chain([&of_snapshot["vms"][0]]).map(path_of) {
        let vm = skep.get(&path).await.ok(200);
        assert_eq!(skep.output(pid_of(&vm), "cat /root/file /dev/shm/file").await, "before\nbefore", "{vm}");
    }
}

/// The VM ends where the release under test cannot encode requests for its agent; otherwise it runs on.
#[tokio::test(flavor = "multi_thread")]
async fn vms_of_an_earlier_revision_run_on_or_are_lost_with_the_reason() {
    for end in [End::Sigterm, End::Killed] {
        let (earlier, images) = earlier_server().await;
        let protocol = protocol_of_template(images.path());
        println!("{end:?}: protocol {protocol} is updated to {PROTOCOL}");
        let vm = earlier.boot(1).await.remove(0);
        let pid = vm["pid"].as_u64().unwrap();
        earlier.output(pid, "echo before > /root/file").await;
        let checked = UnsupportedProtocol::check(protocol);
        let paused = match (&checked, earlier_has_pauses()) {
            (Ok(()), true) => Some(pause_and_store(&earlier).await),
            _ => {
                println!("{end:?}: without paused VMs: the earlier revision has none, or its VMs are lost");
                None
            }
        };

        let skep = update(earlier, end, &images).await;
        match checked {
            Ok(()) => assert_eq!(skep.output(pid, "cat /root/file").await, "before"),
            Err(unsupported) => assert_lost(&skep, &vm, unsupported, end).await,
        }
        if let Some(paused) = paused {
            assert_go_on(&skep, paused).await;
        }
        let new = skep.boot_one().await;
        assert_eq!(skep.output(new, "echo works").await, "works");
        assert_in_order(&skep).await;
        let dir = skep.stop();
        assert_eq!(remains_of(dir.path()), Vec::<String>::new(), "{end:?}");
    }
}
