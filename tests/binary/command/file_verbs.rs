//! Folders made, files moved, removed and watched by command.

use std::{
    io::{BufRead, BufReader},
    process::{Output, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use super::{answer, command, signal, skep, stdout};
use crate::harness::{Skep, eventually, step};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs commands that succeed and print nothing.
#[track_caller]
fn silently(server: &Skep, lines: &[&str]) {
    for line in lines {
        let output = skep(server, &line.split(' ').collect::<Vec<_>>(), "");
        assert!(output.status.success() && output.stdout.is_empty(), "{line}: {output:?}");
    }
}

/// The exit code and the error of a command.
fn refusal(server: &Skep, line: &str) -> (Option<i32>, String) {
    let output = skep(server, &line.split(' ').collect::<Vec<_>>(), "");
    (output.status.code(), stderr(&output))
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_moved_removed_and_watched_in_both_places_and_never_taken_for_vms() {
    let server = Skep::start().await;
    let pid = answer(&skep(&server, &["boot", "--name", "web", "--json"], ""))["vms"][0]["pid"].to_string();
    // Each step leaves an empty workspace to the next one, and the last one ends the VM.
    step("folders are made, files moved and removed", folders_and_files(&server, &pid)).await;
    step("changes are watched until a count, the folder's end or a signal", changes(&server)).await;
    step("a file is never taken for a VM, nor the reverse", files_named_as_vms(&server)).await;
}

async fn folders_and_files(server: &Skep, pid: &str) {
    for at in ["", "web:", "--vm web "] {
        // The option stands before the path, the other ways are a part of it.
        let (option, prefix) = if at.starts_with('-') { (at, "") } else { ("", at) };
        let of = |line: &str| line.replace("OPTION ", option).replace('@', prefix);
        let run = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| of(line)).collect();
            silently(server, &lines.iter().map(String::as_str).collect::<Vec<_>>());
        };
        let refused = |line: &str| refusal(server, &of(line));
        run(&["mkdir OPTION @d1", "mkdir OPTION -p @d1/a/b", "mkdir OPTION -p @d1/a/b"]);
        let (code, message) = refused("mkdir OPTION @d1");
        assert!(code == Some(1) && message.contains("exists already"), "{message}");
        let (code, message) = refused("mkdir OPTION @none/a");
        assert!(code == Some(1) && message.contains("-p"), "{message}");
        let vm: &[&str] = if at.is_empty() { &[] } else { &["--vm", "web"] };
        for file in ["d1/one.txt", "d1/two.txt"] {
            assert!(skep(server, &[&["write", file], vm].concat(), file).status.success());
        }
        run(&["mv OPTION @d1/one.txt @d1/a", "mv OPTION @d1/a/one.txt @d1/three.txt"]);
        let (code, message) = refused("mv OPTION @d1/two.txt @d1/three.txt");
        assert!(code == Some(1) && message.contains("`overwrite: true`"), "{message}");
        run(&["mv OPTION -f @d1/two.txt @d1/three.txt"]);
        let content = stdout(&skep(server, &[&["cat", "d1/three.txt"], vm].concat(), ""));
        assert_eq!(content, "d1/two.txt");
        let (code, message) = refused("rm OPTION @d1/");
        assert!(code == Some(1) && message.contains("-r"), "{message}");
        run(&["rm OPTION @d1/three.txt @d1/a/b", "rm OPTION -r @d1", "rm OPTION -f @d1/three.txt"]);
        assert_eq!(refused("rm OPTION @d1/three.txt").0, Some(1));
    }
    // Between places there is no move; one VM may be named in two ways.
    assert!(skep(server, &["write", "--vm", "web", "a.txt"], "").status.success());
    let (code, message) = refusal(server, "mv web:a.txt b.txt");
    assert!(code == Some(2) && message.contains("skep cp"), "{message}");
    silently(server, &[&format!("mv web:a.txt {pid}:b.txt"), "rm web:b.txt"]);
    for wrong in ["rm web:", "rm :a.txt", "rm --vm web web:a.txt", "mkdir server:", "rm -r web:"] {
        assert_eq!(refusal(server, wrong).0, Some(2), "{wrong}");
    }
    assert_eq!(server.count().await, 1);
}

async fn files_named_as_vms(server: &Skep) {
    let root = server.data_dir.path().join("workspaces/default");
    for file in ["web", "job", "notes.md"] {
        assert!(skep(server, &["write", file], "kept").status.success());
    }
    // A VM and a file, no VM but a file, a word with an option of both: nothing happens, also to what is clear.
    for (line, ways) in [
        ("rm notes.md web", ["skep end web", "skep rm ./web"]),
        ("rm notes.md job", ["skep ps", "skep rm ./job"]),
        ("rm -f notes.md web", ["skep end web", "skep rm -f ./web"]),
    ] {
        let (code, message) = refusal(server, line);
        assert_eq!(code, Some(2), "{line}: {message}");
        assert!(ways.iter().all(|way| message.contains(way)), "{line}: {message}");
    }
    assert_eq!((server.count().await, std::fs::read_dir(&root).unwrap().count()), (1, 3));
    silently(server, &["rm ./web", "rm -r job", "rm notes.md"]);
    assert_eq!((server.count().await, std::fs::read_dir(&root).unwrap().count()), (1, 0));
    // Neither: what `end` says.
    assert_eq!(refusal(server, "rm nobody"), refusal(server, "end nobody"));
    let ended = skep(server, &["rm", "web"], "");
    assert!(ended.status.success() && stdout(&ended).contains("vm_"), "{ended:?}");
    assert_eq!(server.count().await, 0);
}

async fn changes(server: &Skep) {
    for (folder, vm) in [("seen", &[][..]), ("web:seen", &["--vm", "web"][..])] {
        silently(server, &[&format!("mkdir {folder}")]);
        let follow = |more: &[&str]| {
            let mut child = command(server, &[&["watch", folder], more].concat())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
            // From now on no change is missed.
            assert!(messages.next().unwrap().unwrap().contains("watching"));
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            (child, lines.map(Result::unwrap))
        };
        let (mut people, mut lines) = follow(&[]);
        let (mut program, mut json) = follow(&["--json", "-n", "1"]);
        assert!(skep(server, &[&["write", "seen/file"], vm].concat(), "x").status.success());
        let line = lines.next().unwrap();
        assert!(line.starts_with("created ") && line.ends_with("/seen/file"), "{line}");
        let change: Value = serde_json::from_str(&json.next().unwrap()).unwrap();
        assert_eq!(change["type"], "created");
        assert_eq!(program.wait().unwrap().code(), Some(0));
        silently(server, &[&format!("mv {folder}/file {folder}/other")]);
        let renamed = lines.find(|line| line.starts_with("renamed ")).unwrap();
        assert!(renamed.contains("/seen/file -> ") && renamed.ends_with("/seen/other"), "{renamed}");
        signal(&people, Signal::INT);
        assert_eq!(people.wait().unwrap().code(), Some(130));
        let (mut ended, _lines) = follow(&[]);
        silently(server, &[&format!("rm -r {folder}")]);
        eventually("its end", async || ended.try_wait().unwrap().is_some()).await;
        assert_eq!(ended.wait().unwrap().code(), Some(0));
    }
    assert_eq!(refusal(server, "watch missing").0, Some(1));
}
