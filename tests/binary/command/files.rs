//! Files by command: those of the server, those of a VM, and the way between them and here.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};

use super::{answer, skep, stdout};
use crate::harness::{Skep, binary, step};

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
async fn files_are_read_written_and_copied_between_all_places() {
    let server = Skep::start().await;
    let vm = boot(&server);
    step("both places are written, read and searched by the same verbs", async { both_places(&server, &vm) })
        .await;
    step("a folder is copied to the server, on into a VM and back", async { a_folder(&server, &vm) }).await;
    step("what cannot be copied is named, and nothing half is left", async {
        what_cannot_be_copied(&server)
    })
    .await;
    step("links are copied as links, and none is followed", async { links(&server, &vm) }).await;
    step("no link of an earlier copy is followed", async { links_of_earlier_copies(&server, &vm) }).await;
}

fn both_places(server: &Skep, vm: &str) {
    for place in [&[][..], &["--vm", vm]] {
        let run = |arguments: &[&str], input: &str| skep(server, &[arguments, place].concat(), input);
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

fn a_folder(server: &Skep, vm: &str) {
    let temp_dir = tempfile::tempdir().unwrap();
    let (from, back) = (temp_dir.path().join("from"), temp_dir.path().join("back"));
    fs::create_dir_all(from.join("deep/empty")).unwrap();
    fs::write(from.join("deep/zero"), b"").unwrap();
    fs::write(from.join("run me"), b"#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(from.join("run me"), Permissions::from_mode(0o755)).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(from.join("deep/bytes"), &bytes).unwrap();
    fs::set_permissions(from.join("deep/bytes"), Permissions::from_mode(0o640)).unwrap();
    let before = tree(&from);

    let here = from.to_str().unwrap();
    let copied = answer(&skep(server, &["cp", "--json", here, "server:taken"], ""));
    assert_eq!((copied["files"].as_u64(), copied["size_bytes"].as_u64()), (Some(3), Some(3_000_019)));
    done(skep(server, &["cp", "server:taken", &format!("{vm}:/root")], ""));
    assert_eq!(done(skep(server, &["exec", vm, "'/root/taken/run me'"], "")), "ran\n");
    done(skep(server, &["cp", &format!("{vm}:taken/"), back.to_str().unwrap()], ""));
    assert_eq!(tree(&back), before);
    assert!(back.join("deep/empty").is_dir());

    let one = temp_dir.path().join("one");
    done(skep(server, &["cp", &format!("{vm}:taken/deep/bytes"), one.to_str().unwrap()], ""));
    assert_eq!(fs::read(&one).unwrap(), bytes);
}

fn what_cannot_be_copied(server: &Skep) {
    let temp_dir = tempfile::tempdir().unwrap();
    let from = temp_dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("kept"), b"kept").unwrap();
    mkfifoat(CWD, from.join("fifo"), Mode::RUSR).unwrap();
    let here = from.to_str().unwrap();
    let copied = skep(server, &["cp", here, "server:partly"], "");
    assert_eq!(copied.status.code(), Some(1), "{copied:?}");
    assert!(String::from_utf8_lossy(&copied.stderr).contains("from/fifo"), "{copied:?}");
    assert_eq!(done(skep(server, &["cat", "partly/kept"], "")), "kept");
    assert!(!done(skep(server, &["ls", "partly"], "")).contains("fifo"));

    for arguments in [
        &["cp", here, "elsewhere"][..],
        &["cp", "server:missing", here],
        &["cp", here, "server:/etc/cron.d"],
        &["cp", "server:partly/kept", here, "server:partly/kept"],
        &["cp", "99999999:/root", here],
    ] {
        let refused = skep(server, arguments, "");
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {refused:?}");
    }
    assert_eq!(fs::read_dir(&from).unwrap().count(), 2);
}

fn links(server: &Skep, vm: &str) {
    let temp_dir = tempfile::tempdir().unwrap();
    let (from, back) = (temp_dir.path().join("from"), temp_dir.path().join("back"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/file"), b"inside").unwrap();
    let odd = OsStr::from_bytes(b"\xff%41");
    // Within the folder, out of it, to nothing, to a folder, and one that is no UTF-8.
    let targets = [
        ("in", OsStr::new("sub/file")),
        ("out", OsStr::new("/etc/passwd")),
        ("dangling", OsStr::new("../../nowhere")),
        ("folder", OsStr::new("sub")),
        ("odd", odd),
    ];
    for (name, target) in targets {
        symlink(target, from.join(name)).unwrap();
    }
    // The second time links stand there already.
    for _ in 0..2 {
        let copied = answer(&skep(server, &["cp", "--json", from.to_str().unwrap(), "server:"], ""));
        assert_eq!((copied["files"].as_u64(), copied["links"].as_u64()), (Some(1), Some(5)), "{copied}");
        done(skep(server, &["cp", "server:from", &format!("{vm}:")], ""));
        done(skep(server, &["cp", &format!("{vm}:from/"), back.to_str().unwrap()], ""));
    }
    for (name, target) in targets {
        assert_eq!(fs::read_link(back.join(name)).unwrap().as_os_str(), target, "{name}");
    }
    assert_eq!(fs::read(back.join("in")).unwrap(), b"inside");
    assert_eq!(
        done(skep(server, &["exec", vm, "readlink from/out from/dangling"], "")),
        "/etc/passwd\n../../nowhere\n"
    );
    assert_eq!(done(skep(server, &["cat", "from/in"], "")), "inside");
    let outside = skep(server, &["cat", "from/out"], "");
    assert!(!outside.status.success() && outside.stdout.is_empty(), "{outside:?}");
}

/// A VM that sends a link in one copy, and in the next a folder or a file of its name.
fn links_of_earlier_copies(server: &Skep, vm: &str) {
    let temp_dir = tempfile::tempdir().unwrap();
    done(skep(server, &["write", "own/sub/file"], "inside"));
    let canary = temp_dir.path().join("canary");
    fs::create_dir(&canary).unwrap();
    let plant =
        format!("mkdir t; ln -s {} t/a; ln -s ../own t/b; ln -s ../own/sub/file t/c", canary.display());
    done(skep(server, &["exec", vm, &plant], ""));
    let into = temp_dir.path().join("into");
    fs::create_dir(&into).unwrap();
    let into = into.to_str().unwrap();
    let copy = |from: &str, to: &str| skep(server, &["cp", &format!("{vm}:{from}"), to], "");
    for to in [into, "server:"] {
        done(copy("t", to));
    }
    for (spring, name) in [
        ("rm t/a; mkdir t/a; echo stolen > t/a/file", "a"),
        ("rm -r t/a; rm t/b; mkdir -p t/b/sub; echo stolen > t/b/sub/file", "b"),
        ("rm -r t/b; rm t/c; echo stolen > t/c", "c"),
        ("mkdir -p x/a; echo stolen > x/a/file", "x"),
    ] {
        done(skep(server, &["exec", vm, spring], ""));
        for to in [into, "server:"] {
            let refused =
                if name == "x" { copy("x/a", &format!("{to}/t").replace(":/", ":")) } else { copy("t", to) };
            let message = String::from_utf8_lossy(&refused.stderr);
            assert!(
                refused.status.code() == Some(1) && message.contains("remove it first"),
                "{name}: {refused:?}"
            );
        }
    }
    // The control: without a link in the target it is copied.
    done(copy("x", into));
    assert_eq!(fs::read_dir(&canary).unwrap().count(), 0);
    assert_eq!(done(skep(server, &["cat", "own/sub/file"], "")), "inside");
}

/// A server that answers requests by their first line: with a status and a body, or not at all.
fn serve(answer: impl Fn(&str) -> Option<(&'static str, String)> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head).unwrap() == 0 {
                        return;
                    }
                }
                match answer(head.lines().next().unwrap()) {
                    Some((status, body)) => {
                        let length = body.len();
                        let head =
                            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close");
                        write!(stream, "{head}\r\n\r\n{body}").unwrap();
                    }
                    None => std::thread::park(),
                }
            });
        }
    });
    url
}

/// The status line and the header that says that a path does not exist.
const UNKNOWN_PATH: &str = "404 Not Found\r\nskep-error: unknown_path";

/// A server that takes a file and never reads it.
fn stalling_server() -> String {
    serve(|line| {
        let body = r#"{"error": "Not Found", "message": "nothing"}"#.to_owned();
        line.starts_with("GET").then_some((UNKNOWN_PATH, body))
    })
}

/// An entry of a listing.
fn entry(name: &str, kind: &str, target: Option<&Path>) -> Value {
    json!({
        "name": name, "path": format!("/root/t/{name}"), "type": kind, "size_bytes": 6, "mode": "0755", "uid": 0, "gid": 0,
        "modified_at": "2026-01-01T00:00:00Z", "target": target
    })
}

/// A VM that lists a link and a folder of the same name, with a file in the folder.
#[test]
fn no_file_of_a_copy_is_written_through_a_link_of_the_same_copy() {
    let temp_dir = tempfile::tempdir().unwrap();
    let at = |name: &str| temp_dir.path().join(name);
    for name in ["canary", "into"] {
        fs::create_dir(at(name)).unwrap();
    }
    let canary = at("canary");
    let url = serve(move |line| {
        let list =
            |entries: Value| json!({"path": "/root", "entries": entries, "next_cursor": null}).to_string();
        let answer = match line.replace("%2F", "/") {
            line if line.contains("/api/files/read") => "stolen".to_owned(),
            line if line.contains("/root/t/a") => list(json!([entry("file", "file", None)])),
            line if line.contains("/root/control") => list(json!([entry("a", "symlink", Some(&canary))])),
            _ => list(json!([entry("a", "symlink", Some(&canary)), entry("a", "directory", None)])),
        };
        Some(("200 OK", answer))
    });
    let into = at("into");
    let copy = |source: &str| {
        let arguments = ["cp", source, into.to_str().unwrap(), "--url", &url, "--api-key", "x"];
        Command::new(binary()).args(arguments).output().unwrap()
    };
    let copied = copy("web:t");
    assert_eq!(fs::read_dir(at("canary")).unwrap().count(), 0, "{copied:?}");
    assert_eq!(fs::read(into.join("t/a/file")).unwrap(), b"stolen", "{copied:?}");
    let message = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.code() == Some(1) && message.contains("t/a cannot be created"), "{copied:?}");
    // The control: the link alone is copied, and leads there.
    done(copy("web:control"));
    assert_eq!(fs::read_link(into.join("control/a")).unwrap(), at("canary"));
}

#[test]
fn a_copy_that_takes_long_shows_bytes_and_rate_on_a_terminal_only() {
    let url = stalling_server();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    let source = file.path().to_str().unwrap();
    let (mut terminal, end) = super::terminal();
    let (mut pipe, other_end) = std::io::pipe().unwrap();
    let copy = |errors: Stdio| {
        let arguments = ["cp", source, "web:file", "--url", &url, "--api-key", "x"];
        Command::new(binary()).args(arguments).env("TERM", "xterm").stderr(errors).spawn().unwrap()
    };
    let (mut shown, mut silent) = (copy(end.into()), copy(other_end.into()));
    let mut progress = String::new();
    while !(progress.contains("64.00 MiB") && progress.contains("/s")) {
        let mut block = [0; 256];
        let read = terminal.read(&mut block).unwrap();
        progress.push_str(&String::from_utf8_lossy(&block[..read]));
    }
    for child in [&mut shown, &mut silent] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut rest = String::new();
    pipe.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "no terminal, no progress");
}
