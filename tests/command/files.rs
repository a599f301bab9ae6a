//! Files by command: those of the server, those of a VM, and the way between them and here.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Output,
};

use serde_json::Value;

use super::{answer, skep, stdout};
use crate::harness::Skep;

/// The files below a folder: path, content, mode.
fn tree(folder: &Path) -> BTreeMap<String, (Vec<u8>, u32)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            let (path, about) = (entry.path(), fs::symlink_metadata(entry.path()).unwrap());
            if about.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, (fs::read(&path).unwrap(), about.permissions().mode() & 0o7777));
            }
        }
    }
    found
}

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

fn boot(server: &Skep) -> String {
    answer(&skep(server, &["boot", "--json"], ""))["vms"][0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_places_are_written_read_and_searched_by_the_same_verbs() {
    let server = Skep::start().await;
    let vm = boot(&server);
    for place in [&[][..], &["--vm", &vm]] {
        let run = |words: &[&str], input: &str| skep(&server, &[words, place].concat(), input);
        let long = format!("first\n{}the needle\n", "hay\n".repeat(100_000));
        done(run(&["write", "notes/deep/long.txt", "--mode", "0600"], &long));
        done(run(&["write", "notes/deep/long.txt", "--append"], "last ü\n"));
        assert_eq!(done(run(&["cat", "notes/deep/long.txt"], "")), format!("{long}last ü\n"));
        let listed = done(run(&["ls", "notes/deep"], ""));
        assert!(listed.contains("-0600") && listed.contains("long.txt"), "{listed}");
        let root = if place.is_empty() {
            server.data_dir.path().join("workspaces/default").display().to_string()
        } else {
            "/root".to_owned()
        };
        assert_eq!(done(run(&["find", "*.txt", "notes"], "")), format!("{root}/notes/deep/long.txt\n"));
        let lines = done(run(&["grep", "need.e", "notes", "-C", "1"], ""));
        let path = format!("{root}/notes/deep/long.txt");
        assert_eq!(lines, format!("{path}-100001-hay\n{path}:100002:the needle\n{path}-100003-last ü\n"));
        let found: Value = answer(&run(&["find", "--json", "nothing*"], ""));
        assert_eq!(found["matches"].as_array().unwrap().len(), 0);
        let missing = run(&["cat", "notes/missing"], "");
        assert_eq!(missing.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&missing.stderr).contains("notes/missing"), "{missing:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_copied_to_the_server_on_into_a_vm_and_back() {
    let server = Skep::start().await;
    let vm = boot(&server);
    let ground = tempfile::tempdir().unwrap();
    let (from, back) = (ground.path().join("from"), ground.path().join("back"));
    fs::create_dir_all(from.join("deep/empty")).unwrap();
    fs::write(from.join("deep/zero"), b"").unwrap();
    fs::write(from.join("run me"), b"#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(from.join("run me"), Permissions::from_mode(0o755)).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(from.join("deep/bytes"), &bytes).unwrap();
    fs::set_permissions(from.join("deep/bytes"), Permissions::from_mode(0o640)).unwrap();
    let before = tree(&from);

    let here = from.to_str().unwrap();
    let copied = answer(&skep(&server, &["cp", "--json", here, "server:taken"], ""));
    assert_eq!((copied["files"].as_u64(), copied["size_bytes"].as_u64()), (Some(3), Some(3_000_019)));
    done(skep(&server, &["cp", "server:taken", &format!("{vm}:/root")], ""));
    assert_eq!(done(skep(&server, &["exec", &vm, "'/root/taken/run me'"], "")), "ran\n");
    done(skep(&server, &["cp", &format!("{vm}:taken/"), back.to_str().unwrap()], ""));
    assert_eq!(tree(&back), before);
    assert!(back.join("deep/empty").is_dir());

    let one = ground.path().join("one");
    done(skep(&server, &["cp", &format!("{vm}:taken/deep/bytes"), one.to_str().unwrap()], ""));
    assert_eq!(fs::read(&one).unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_is_named_and_nothing_half_is_left() {
    let server = Skep::start().await;
    let ground = tempfile::tempdir().unwrap();
    let from = ground.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("kept"), b"kept").unwrap();
    symlink("/etc/passwd", from.join("link")).unwrap();
    let here = from.to_str().unwrap();
    let copied = skep(&server, &["cp", here, "server:taken"], "");
    assert_eq!(copied.status.code(), Some(1), "{copied:?}");
    assert!(String::from_utf8_lossy(&copied.stderr).contains("from/link"), "{copied:?}");
    assert_eq!(done(skep(&server, &["cat", "taken/kept"], "")), "kept");
    assert!(!done(skep(&server, &["ls", "taken"], "")).contains("link"));

    for words in [
        &["cp", here, "elsewhere"][..],
        &["cp", "server:missing", here],
        &["cp", here, "server:/etc/cron.d"],
        &["cp", "server:taken/kept", here, "server:taken/kept"],
        &["cp", "99999999:/root", here],
    ] {
        let refused = skep(&server, words, "");
        assert_eq!(refused.status.code(), Some(1), "{words:?}: {refused:?}");
    }
    assert_eq!(fs::read_dir(&from).unwrap().count(), 2);
}
