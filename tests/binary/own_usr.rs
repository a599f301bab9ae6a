//! Programs that run skep with a /usr that is changed for skep and its children alone, and an update of QEMU in it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use crate::{
    copies::{path_of, pid_of},
    harness::{Skep, binary, temp_dir, write_program},
    pool::full,
};

pub(crate) const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// A program that reports another version of QEMU and cannot run VMs.
pub(crate) const OTHER: &str = "#!/bin/sh\necho 'QEMU emulator version 1.2.3 (Debian 1:1.2.3-1)'\n";

/// Puts a copy of this file in the place of the server's QEMU, as a package manager does: by a rename.
pub(crate) fn install(skep: &Skep, source: &Path) {
    let path = PathBuf::from(format!("/proc/{}/root{QEMU}", skep.pid()));
    let new = path.with_extension("new");
    // By another process: processes that other tests start must not inherit a descriptor that writes a program.
    let status = Command::new("install").args(["-m", "755"]).arg(source).arg(&new).status().unwrap();
    assert!(status.success());
    fs::rename(new, path).unwrap();
}

/// The upstream version of the engine that the server started with.
pub(crate) async fn engine(skep: &Skep) -> String {
    let status = skep.get("/api/swarm/status").await.ok(200);
    let name = status["engine"]["name"].as_str().unwrap();
    name.split(" (").next().unwrap().to_owned()
}

/// A program that runs skep with a /usr that can be changed for skep and its children alone.
pub(crate) fn with_own_usr(folder: &Path) -> PathBuf {
    after_change_of_usr(folder, "true")
}

/// A program that runs skep on a machine without QEMU.
pub(crate) fn without_qemu(folder: &Path) -> PathBuf {
    after_change_of_usr(folder, &format!("rm {QEMU}"))
}

fn after_change_of_usr(folder: &Path, change: &str) -> PathBuf {
    let (site, program) = (folder.join("site"), folder.join("skep"));
    fs::create_dir(&site).unwrap();
    let script = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -euc '\n\
         mount -t tmpfs skep-test {site}\n\
         mkdir -m 755 {site}/upper {site}/work\n\
         mount -t overlay skep-test -o lowerdir=/usr,upperdir={site}/upper,workdir={site}/work /usr\n\
         {change}\n\
         exec {skep} \"$@\"' skep \"$@\"\n",
        site = site.display(),
        skep = binary().display(),
    );
    write_program(&program, &script);
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_update_of_qemu_running_vms_continue_and_only_parked_ones_are_booted() {
    let folder = temp_dir();
    let other = folder.path().join("other");
    fs::write(&other, OTHER).unwrap();
    let program = with_own_usr(folder.path());
    let skep = Skep::start_by(&program, temp_dir(), |command| _ = command.args(["--pool-size", "1"])).await;
    full(&skep).await;
    let (running, sleeper) = (skep.boot(1).await.remove(0), skep.boot(1).await.remove(0));
    skep.output(pid_of(&sleeper), "echo kept > /dev/shm/word").await;
    let [fork, snapshot, pause] =
        ["fork", "snapshot", "pause"].map(|verb| format!("{}/{verb}", path_of(&running)));
    let resume = format!("{}/resume", path_of(&sleeper));
    let to_disk = json!({"to": "disk"});
    skep.post(&format!("{}/pause", path_of(&sleeper)), &to_disk).await.ok(200);
    full(&skep).await;

    install(&skep, &other);
    let engine = engine(&skep).await;
    let parked = skep.boot(1).await.remove(0);
    assert_eq!(parked["boot"]["source"], "pool", "{parked}");
    for (path, body) in [
        ("/api/swarm/boot", json!({})),
        (fork.as_str(), json!({})),
        (snapshot.as_str(), json!({"name": "stored"})),
        (pause.as_str(), to_disk),
        (resume.as_str(), json!({})),
    ] {
        let refused = skep.post(path, &body).await;
        let message = refused.refused(409, "template_not_ready");
        assert!(message.contains(&engine) && message.contains("qemu 1.2.3"), "{path}: {message}");
    }
    for vm in [&running, &parked] {
        assert_eq!(skep.output(pid_of(vm), "echo runs").await, "runs");
    }

    // The control: the original version resumes the VM that it paused.
    install(&skep, Path::new(QEMU));
    skep.post(&resume, &json!({})).await.ok(200);
    let resumed = skep.get(&path_of(&sleeper)).await.ok(200);
    assert_eq!(skep.output(pid_of(&resumed), "cat /dev/shm/word").await, "kept");
}
