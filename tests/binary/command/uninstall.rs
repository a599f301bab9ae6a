//! `skep uninstall` removes everything of one installation, and nothing of another.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::harness::{Skep, binary, eventually, output_of, remains_of};

fn uninstall(data_dir: &Path, images: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["uninstall", "--data-dir"]).arg(data_dir).arg("--image-dir").arg(images).args(more);
    command.stdin(Stdio::null());
    command
}

fn lines(value: &Value) -> String {
    let lines = value.as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// Answers the command's question on a terminal. Returns its exit code and output.
fn answered(command: &mut Command, answer: &str) -> (Option<i32>, String) {
    let (mut terminal, end) = super::terminal();
    let mut child =
        command.stdin(end.try_clone().unwrap()).stderr(end).stdout(Stdio::null()).spawn().unwrap();
    // It keeps the other end of the terminal.
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut message = String::new();
    let mut read = |terminal: &mut File, until: &str| {
        while !message.contains(until) {
            let mut block = [0; 4096];
            let Ok(count) = terminal.read(&mut block) else { break };
            message.push_str(&String::from_utf8_lossy(&block[..count]));
        }
    };
    read(&mut terminal, "Type `yes`");
    terminal.write_all(answer.as_bytes()).unwrap();
    read(&mut terminal, "nothing was removed");
    (child.wait().unwrap().code(), message)
}

/// Waits until the egress process of a stopped server has ended. It does so by itself, where no VM has a policy.
async fn wait_for_the_egress_process(data_dir: &Path) {
    eventually("the end of the egress process", async || {
        !remains_of(data_dir).iter().any(|one| one.contains("egress-process"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_installation_goes_after_a_question_and_another_stays() {
    let other = Skep::start().await;
    let kept = other.boot_one().await;
    let skep = Skep::start().await;
    skep.boot(2).await;
    let images = tempfile::tempdir().unwrap();
    fs::create_dir(images.path().join("base")).unwrap();
    let pid = skep.pid().to_string();

    let running = output_of(&mut uninstall(skep.data_dir.path(), images.path(), &["--yes"]));
    let message = String::from_utf8_lossy(&running.stderr).into_owned();
    assert!(
        running.status.code() == Some(1) && message.contains(&pid) && message.contains("stop it"),
        "{message}"
    );
    assert_eq!(skep.count().await, 2);

    let wreck = skep.stop_and_leave_vms();
    let data_dir = wreck.path().to_owned();
    fs::write(data_dir.join("mine"), "not skep's").unwrap();
    wait_for_the_egress_process(&data_dir).await;
    let before = remains_of(&data_dir);
    assert!(!before.is_empty());
    let unasked = output_of(&mut uninstall(&data_dir, images.path(), &[]));
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    let (code, message) = answered(&mut uninstall(&data_dir, images.path(), &[]), "no\n");
    assert_eq!(code, Some(1), "{message}");
    let name = data_dir.file_name().unwrap().to_str().unwrap();
    assert!(
        message.contains("2 VMs") && message.contains("netns/skep-") && message.contains(name),
        "{message}"
    );
    assert_eq!(remains_of(&data_dir), before, "the control: nothing was removed");

    let keep = output_of(&mut uninstall(&data_dir, images.path(), &["--yes", "--keep-data", "--json"]));
    assert!(keep.status.success(), "{keep:?}");
    assert_eq!(remains_of(&data_dir), Vec::<String>::new());
    assert!(data_dir.join("server/skep.db").exists() && data_dir.join("admin.key").exists());

    let done = output_of(&mut uninstall(&data_dir, images.path(), &["--yes", "--json"]));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
    assert!(lines(&report["removed"]).contains(name), "{report}");
    let stays = lines(&report["kept"]);
    for word in ["mine", "image directory", "/usr/local/bin/skep"] {
        assert!(stays.contains(word), "{word}: {stays}");
    }
    // The log is the harness's.
    let mut left: Vec<_> = fs::read_dir(&data_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["mine", "test.log"], "what skep did not make stays");
    assert!(images.path().join("base").exists());
    assert_eq!(other.output(kept, "echo alive").await, "alive");
}

/// Runs a script as on a machine where skep is a service, in namespaces that hide the real machine.
fn on_a_machine_of_its_own(temp_dir: &Path, script: &str) -> Output {
    let set_up = r#"
        set -eu
        mount --make-rprivate /
        cp -a /etc "$1/etc" && mount --bind "$1/etc" /etc
        for folder in /run /usr/local/bin /var/lib; do mount -t tmpfs none "$folder"; done
        grep -q '^skep:' /etc/passwd || echo 'skep:x:987:987::/nonexistent:/usr/sbin/nologin' >> /etc/passwd
        cp "$2" /usr/local/bin/skep
        printf '#!/bin/sh\necho "$@" >> "%s/systemctl"\n' "$1" > /usr/local/bin/systemctl
        chmod +x /usr/local/bin/systemctl
        mkdir -p /etc/systemd/system /var/lib/skep
        cp "$3" /etc/systemd/system/skep.service
        cd /var/lib/skep && mkdir keeper server workspaces templates && echo key > admin.key
        export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        has() { [ -e /etc/systemd/system/skep.service ] && echo unit; [ -e /usr/local/bin/skep ] && echo program
                grep -q '^skep:' /etc/passwd && echo user; [ -e /var/lib/skep ] && echo data; :; }
    "#;
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/skep.service");
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        &format!("{set_up}\n{script}"),
        "sh",
    ]);
    output_of(command.arg(temp_dir).arg(binary()).arg(unit))
}

#[test]
fn machine_wide_files_are_removed_with_the_service_that_owns_them() {
    let temp_dir = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        let temp_dir = tempfile::tempdir_in(temp_dir.path()).unwrap();
        let output = on_a_machine_of_its_own(temp_dir.path(), script);
        let called = fs::read_to_string(temp_dir.path().join("systemctl")).unwrap_or_default();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), called, output)
    };
    let (code, has, called, all) = run("skep uninstall --yes > /dev/null; has");
    assert_eq!((code, has.as_str()), (Some(0), ""), "{all:?}");
    assert_eq!(called, "disable skep\ndaemon-reload\n");
    let (code, has, _, all) = run("skep uninstall --yes --keep-data > /dev/null; has");
    assert_eq!((code, has.as_str()), (Some(0), "user\ndata\n"), "{all:?}");
    // Another server's data is left alone, with what that server needs.
    let other = "mkdir -p /run/skep/0123456789ab; skep uninstall --yes > /dev/null; has";
    let (code, has, _, all) = run(other);
    assert_eq!((code, has.as_str()), (Some(0), "program\nuser\n"), "{all:?}");
    folders_beside_the_data(run);
    left_alone(run);
}

/// Folders of `--root` are kept. The image directory is removed only if it is named and no other server is on the machine.
fn folders_beside_the_data(run: impl Fn(&str) -> (Option<i32>, String, String, Output)) {
    let images = "--image-dir /var/lib/images";
    for (before, options, left) in [
        ("", images, "files\n"),
        ("", "", "files\nimages\n"),
        ("mkdir -p /run/skep/0123456789ab", images, "files\nimages\n"),
    ] {
        let script = format!(
            "mkdir -p /var/lib/images/base /var/lib/files; {before}
             skep uninstall --yes --root /var/lib/files {options} > /dev/null; ls /var/lib"
        );
        let (code, listed, _, all) = run(&script);
        assert_eq!((code, listed.as_str()), (Some(0), left), "{before} {options}: {all:?}");
    }
}

/// A folder that is no data directory, a unit of another data directory, and something that is mounted. Each of these calls
/// leaves the installation as it is for the next one.
fn left_alone(run: impl Fn(&str) -> (Option<i32>, String, String, Output)) {
    let script = "mkdir /var/lib/photos; ! skep uninstall --yes --data-dir /var/lib/photos 2>&1; ls /var/lib
        rmdir /var/lib/photos; echo --
        mkdir -p /var/lib/other/keeper; skep uninstall --yes --data-dir /var/lib/other > /dev/null; has; ls /var/lib
        echo --
        mount -t tmpfs none /var/lib/skep/workspaces; ! skep uninstall --yes 2>&1; has";
    let (code, printed, called, all) = run(script);
    let parts: Vec<&str> = printed.split("--\n").collect();
    let [strange, elsewhere, mounted] = parts[..] else { panic!("{all:?}") };
    assert_eq!((code, called.as_str()), (Some(0), ""), "{all:?}");
    assert!(strange.contains("not a data directory") && strange.ends_with("photos\nskep\n"), "{all:?}");
    assert_eq!(elsewhere, "unit\nprogram\nuser\ndata\nskep\n", "{all:?}");
    assert!(
        mounted.contains("unmount it first") && mounted.ends_with("unit\nprogram\nuser\ndata\n"),
        "{all:?}"
    );
}
