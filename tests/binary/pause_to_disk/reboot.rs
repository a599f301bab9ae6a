//! A restart of the machine: another boot id, and no process, mount or namespace of before.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use skep_harness::temp_dir;

use super::{Worker, boot_request};
use crate::{
    harness::{Skep, binary, eventually, kill, write_program},
    takeover::{ids, listed},
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
async fn a_vm_on_disk_outlives_a_restart_of_the_machine() {
    let folder = temp_dir();
    let skep = Skep::start_by(&on_boot(folder.path(), "first"), temp_dir(), |_| ()).await;
    let vm = Worker::boot(&skep, &boot_request("sleeper")).await;
    let running = skep.boot(1).await.remove(0);
    let count = vm.count(&skep).await;
    vm.pause(&skep).await;

    let record = skep.data_dir.path().join(format!("keeper/vms/{}.json", running["id"].as_str().unwrap()));
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    assert_eq!(record["boot_id"], "first", "the machine is not restarted by this test");
    let vmm = u32::try_from(running["pid"].as_u64().unwrap()).unwrap();
    let server = skep.server_pid().unwrap();
    let stopped = skep.crash();
    kill(vmm);
    eventually("the end of all processes", async || !is_alive(vmm) && !is_alive(server)).await;
    let skep = stopped.start_by(&on_boot(folder.path(), "second"), |_| ()).await;

    assert_eq!(ids(&listed(&skep).await), BTreeSet::from([vm.id.clone()]));
    let ended = skep.get("/api/vms?state=ended").await.ok(200);
    let [lost] = ended["vms"].as_array().unwrap().as_slice() else { panic!("{ended}") };
    assert_eq!((&lost["id"], &lost["reason"]), (&running["id"], &json!("lost")));
    vm.resume(&skep).await;
    vm.assert_unchanged(&skep, count).await;
}
