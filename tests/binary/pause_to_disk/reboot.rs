//! What VMs on disk outlive. After a restart of the machine there is another boot id, and no process, mount or namespace of before.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use skep_harness::temp_dir;

use super::{Worker, boot_request};
use crate::{
    copies::{path_of, pid_of},
    harness::{Skep, binary, eventually, kill, write_program},
    takeover::{Victim, ids, listed},
};

/// A program that runs skep with this boot id and with mounts of its own, which vanish with its last process.
fn on_boot(folder: &Path, boot_id: &str) -> PathBuf {
    let (file, program) = (folder.join(format!("id-{boot_id}")), folder.join(format!("skep-{boot_id}")));
    fs::write(&file, format!("{boot_id}\n")).unwrap();
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -ec '\n\
         mount --bind {file} /proc/sys/kernel/random/boot_id\nexec {skep} \"$@\"' skep \"$@\"\n",
        file = file.display(),
        skep = binary().display(),
    );
    write_program(&program, &script);
    program
}

fn is_alive(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_on_disk_outlives_server_keeper_and_machine() {
    let folder = temp_dir();
    let skep = Skep::start_by(&on_boot(folder.path(), "first"), temp_dir(), |_| ()).await;
    let vm = Worker::boot(&skep, &boot_request("sleeper")).await;
    // Process ids that the VMs had before.
    let mut former = vec![(vm.pid(&skep).await, vm.id.clone())];
    let count = vm.count(&skep).await;
    vm.pause(&skep).await;
    let awake = skep.boot(1).await.remove(0);
    let awake_id = awake["id"].as_str().unwrap().to_owned();
    former.push((pid_of(&awake), awake_id.clone()));
    skep.post(&format!("{}/pause", path_of(&awake)), &json!({"to": "disk"})).await.ok(200);
    skep.post(&format!("{}/resume", path_of(&awake)), &json!({})).await.ok(200);

    // `thorough` kills the keeper alone.
    let skep = Victim::Server.kill(skep).await;
    lead_to_their_vms(&skep, &former).await;
    assert_eq!(ids(&listed(&skep).await), BTreeSet::from([vm.id.clone(), awake_id]));
    is_on_disk(&skep, &vm).await;

    let skep = after_a_restart_of_the_machine(skep, &awake, &on_boot(folder.path(), "second")).await;
    former.retain(|(_, of)| *of == vm.id);
    lead_to_their_vms(&skep, &former).await;
    is_on_disk(&skep, &vm).await;

    // Ctrl-C ends the VMs that run, and leaves those on disk.
    let data_dir = skep.stop();
    let half_written = half_written_snapshot(data_dir.path());
    let skep = Skep::start_by(&on_boot(folder.path(), "third"), data_dir, |_| ()).await;
    assert_eq!(ids(&listed(&skep).await), BTreeSet::from([vm.id.clone()]));
    assert!(!half_written.exists(), "what a killed keeper had begun to write is there");
    vm.resume(&skep).await;
    vm.assert_unchanged(&skep, count).await;
    former.push((vm.pid(&skep).await, vm.id.clone()));
    lead_to_their_vms(&skep, &former).await;
}

/// It is there, and its address is not given away.
async fn is_on_disk(skep: &Skep, vm: &Worker) {
    assert_eq!(skep.get(&vm.path()).await.ok(200)["paused_to"], "disk");
    let other = skep.boot(1).await.remove(0);
    assert_ne!(other["ip"], vm.record["ip"]);
    skep.delete(&path_of(&other)).await.ok(200);
}

/// The server of the next boot of the machine, which this VM has not outlived.
async fn after_a_restart_of_the_machine(skep: Skep, running: &Value, program: &Path) -> Skep {
    let record = skep.data_dir.path().join(format!("keeper/vms/{}.json", running["id"].as_str().unwrap()));
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    assert_eq!(record["boot_id"], "first", "the machine is not restarted by this test");
    let vmm = skep.get(&path_of(running)).await.ok(200)["pid"].as_u64().unwrap();
    let vmm = u32::try_from(vmm).unwrap();
    let server = skep.server_pid().unwrap();
    let stopped = skep.crash();
    kill(vmm);
    eventually("the end of all processes", async || !is_alive(vmm) && !is_alive(server)).await;
    let skep = stopped.start_by(program, |_| ()).await;
    let ended = skep.get("/api/vms?state=ended").await.ok(200);
    let lost = ended["vms"].as_array().unwrap().iter().filter(|vm| vm["reason"] == "lost");
    assert_eq!(lost.map(|vm| &vm["id"]).collect::<Vec<_>>(), [&running["id"]], "{ended}");
    skep
}

/// Fails unless each of these former process ids leads to its VM.
async fn lead_to_their_vms(skep: &Skep, former: &[(u64, String)]) {
    for (pid, vm) in former {
        let found = skep.get(&format!("/api/swarm/vm/{pid}")).await.ok(200);
        assert_eq!(found["id"], vm.as_str(), "the process id {pid} leads to {found}");
    }
}

/// What a keeper leaves that is killed while it stores a VM.
fn half_written_snapshot(data_dir: &Path) -> PathBuf {
    let folder = data_dir.join("templates/tpl_00000000000000000000000007");
    fs::create_dir_all(folder.join(".partial-1")).unwrap();
    let size = json!({"memory_mb": 128, "vcpus": 1, "disk_mb": 2048});
    let recipe = json!({"parent": "tpl_00000000000000000000000000", "size": size, "kind": "pause"});
    fs::write(folder.join("recipe.json"), recipe.to_string()).unwrap();
    folder
}
