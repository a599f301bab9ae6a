//! Backup and restore by the command, as an operator does it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Skep, binary, command, eventually, output_of, serve};

fn run(verb: &str, data_dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg(verb).args(arguments).arg("--data-dir").arg(data_dir);
    command.output().unwrap()
}

#[track_caller]
fn good(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn refused(output: &Output, expected: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    for word in expected {
        assert!(message.contains(word), "{word}: {message}");
    }
}

async fn key(skep: &Skep, name: &str) {
    skep.post("/api/keys", &json!({"name": name, "role": "agent"})).await.ok(201);
}

/// The values of a field in a list, sorted.
async fn listed(skep: &Skep, path: &str, list: &str, field: &str) -> Vec<String> {
    let answer = skep.get(path).await.ok(200);
    let entries = answer[list].as_array().unwrap().iter();
    let mut values: Vec<String> = entries.map(|entry| entry[field].as_str().unwrap().to_owned()).collect();
    values.sort();
    values
}

/// The names of the keys.
async fn names(skep: &Skep) -> Vec<String> {
    listed(skep, "/api/keys", "keys", "name").await
}

async fn account_and_webhook(skep: &Skep, name: &str) {
    skep.post("/api/accounts", &json!({"name": name})).await.ok(201);
    let webhook = json!({"url": format!("https://hooks.example.com/{name}"), "types": ["vm.booted"]});
    skep.post("/api/webhooks", &webhook).await.ok(201);
}

/// The accounts, the webhooks, and the keys whose creation the audit has.
async fn administration(skep: &Skep) -> [Vec<String>; 3] {
    [
        listed(skep, "/api/accounts", "accounts", "name").await,
        listed(skep, "/api/webhooks", "webhooks", "url").await,
        listed(skep, "/api/audit?action=create_key", "entries", "resource").await,
    ]
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("skep-backup-").tempdir().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Names of files beside the store that a restore left.
fn kept(data_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(data_dir.join("server")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("before-restore") && !name.ends_with("-wal")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_running_server_is_what_a_restore_brings_back() {
    let (skep, kept_in) = (Skep::start().await, folder());
    let file = kept_in.path().join("store.backup");
    key(&skep, "before").await;
    account_and_webhook(&skep, "acme").await;
    // The audit is written after the answer.
    eventually("the entry of the audit", async || !administration(&skep).await[2].is_empty()).await;
    let before = administration(&skep).await;
    let [accounts, webhooks, created_keys] = &before;
    assert_eq!((accounts.len(), webhooks.len(), created_keys.len()), (2, 1, 1), "{before:?}");
    let made: Value =
        serde_json::from_str(&good(&run("backup", skep.data_dir.path(), &[text(&file), "--json"]))).unwrap();
    assert_eq!(made["size_bytes"], fs::metadata(&file).unwrap().len());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    key(&skep, "after").await;
    account_and_webhook(&skep, "later").await;
    skep.health().await;

    refused(&run("restore", skep.data_dir.path(), &[text(&file)]), &["is served by process"]);
    assert_eq!(names(&skep).await, ["admin", "after", "before"], "a refused restore changes nothing");
    let data_dir = skep.stop();
    let message = good(&run("restore", data_dir.path(), &[text(&file)]));
    assert!(message.contains("before-restore"), "{message}");
    assert_eq!(kept(data_dir.path()).len(), 1);
    let skep = Skep::start_on(data_dir, &[]).await;
    assert_eq!(names(&skep).await, ["admin", "before"]);
    assert_eq!(administration(&skep).await, before);
    // The server's user can write what root has put there.
    key(&skep, "again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_gives_tickets_back_and_tells_those_who_follow() {
    let (skep, kept_in) = (Skep::start().await, folder());
    let file = kept_in.path().join("store.backup");
    let made = skep.post("/api/tickets", &json!({"title": "held", "max_attempts": 1})).await.ok(201);
    let id = made["id"].as_str().unwrap().to_owned();
    let claim = json!({"assignee": "agent-7"});
    assert_eq!(skep.post("/api/tickets/claim", &claim).await.ok(200)["tickets"][0]["id"], json!(id));
    good(&run("backup", skep.data_dir.path(), &[text(&file)]));
    skep.post("/api/tickets", &json!({"title": "undone"})).await.ok(201);
    let history = skep.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    let seen = history["events"][2]["id"].as_str().unwrap().to_owned();
    let data_dir = skep.stop();
    good(&run("restore", data_dir.path(), &[text(&file)]));
    let skep = Skep::start_on(data_dir, &[]).await;
    let follow = ["events", "--after", &seen, "-n", "3", "--json"];
    let lines = good(&output_of(&mut command(&skep, &follow)));
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["stream.gap", "ticket.released", "ticket.ready"]);
    assert_eq!((&events[0]["reason"], &events[0]["from"]), (&json!("restored"), &json!(seen)));
    assert_eq!(events[1]["ticket"], json!(id));
    let ticket = skep.get(&format!("/api/tickets/{id}")).await.ok(200);
    assert_eq!((&ticket["status"], &ticket["attempt"]), (&json!("pending"), &json!(1)), "it did not count");
    assert_eq!(skep.get("/api/tickets").await.ok(200)["tickets"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_overwrites_nothing_unasked() {
    let (skep, kept_in) = (Skep::start().await, folder());
    let data_dir = skep.data_dir.path();
    let file = kept_in.path().join("store.backup");
    fs::write(&file, "precious").unwrap();
    refused(&run("backup", data_dir, &[text(&file)]), &["store.backup", "--force"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    good(&run("backup", data_dir, &[text(&file), "--force"]));
    assert!(fs::read(&file).unwrap().starts_with(b"SQLite format 3"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let nowhere = kept_in.path().join("no/such/folder/file");
    refused(&run("backup", data_dir, &[text(&nowhere)]), &["no/such/folder"]);
    refused(&run("backup", data_dir, &[text(kept_in.path()), "--force"]), &["cannot be a file"]);
    refused(
        &run("backup", &kept_in.path().join("none"), &[text(&file), "--force"]),
        &["no store at", "--data-dir"],
    );
    let left: Vec<_> =
        fs::read_dir(kept_in.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["store.backup"], "no half file is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_backup_is_refused_by_name_and_the_store_stays() {
    let (skep, kept_in) = (Skep::start().await, folder());
    key(&skep, "mine").await;
    let data_dir = skep.stop();
    let letter = kept_in.path().join("letter");
    fs::write(&letter, "a letter. ".repeat(1000)).unwrap();
    let pipe = kept_in.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let used = kept_in.path().join("used.db");
    fs::write(&used, "x").unwrap();
    fs::write(kept_in.path().join("used.db-wal"), "x").unwrap();
    for (file, expected) in [
        (letter.as_path(), &["letter", "skep backup"][..]),
        (&pipe, &["pipe", "is no file"]),
        (&used, &["used.db", "log beside it"]),
        (Path::new("/no/such/file"), &["/no/such/file"]),
    ] {
        refused(&run("restore", data_dir.path(), &[text(file)]), expected);
    }
    assert_eq!(kept(data_dir.path()), Vec::<String>::new());
    let skep = Skep::start_on(data_dir, &[]).await;
    assert_eq!(names(&skep).await, ["admin", "mine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_restores_at_once_each_is_whole_or_refused() {
    let (skep, kept_in) = (Skep::start().await, folder());
    let file = kept_in.path().join("store.backup");
    key(&skep, "kept").await;
    good(&run("backup", skep.data_dir.path(), &[text(&file)]));
    let data_dir = skep.stop();
    let begin = || {
        let mut command = Command::new(binary());
        command.arg("restore").arg(&file).arg("--data-dir").arg(data_dir.path());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let under_way: Vec<_> = (0..6).map(|_| begin()).collect();
    let outcomes: Vec<Output> =
        under_way.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let won = outcomes.iter().filter(|outcome| outcome.status.success()).count();
    assert!(won >= 1, "{outcomes:?}");
    for outcome in outcomes.iter().filter(|outcome| !outcome.status.success()) {
        refused(outcome, &["is served by"]);
    }
    assert_eq!(kept(data_dir.path()).len(), won, "each that won kept what it replaced");
    let skep = Skep::start_on(data_dir, &[]).await;
    assert_eq!(names(&skep).await, ["admin", "kept"]);
}

/// Where SQLite keeps a database's version in its file.
const VERSION_AT: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_store_is_refused_with_its_number() {
    let (skep, kept_in) = (Skep::start().await, folder());
    let file = kept_in.path().join("store.backup");
    good(&run("backup", skep.data_dir.path(), &[text(&file)]));
    let data_dir = skep.stop();
    let store = data_dir.path().join("server/skep.db");
    let now = fs::read(&store).unwrap();
    for (path, mut bytes) in [(&store, now.clone()), (&file, fs::read(&file).unwrap())] {
        bytes[VERSION_AT..VERSION_AT + 4].copy_from_slice(&4711_u32.to_be_bytes());
        fs::write(path, bytes).unwrap();
    }
    let started = output_of(&mut serve(data_dir.path(), &[]));
    refused(&started, &["version 4711", "start a newer skep"]);
    refused(&run("restore", data_dir.path(), &[text(&file)]), &["version 4711", "store.backup"]);
    assert_eq!(kept(data_dir.path()), Vec::<String>::new());
    // The control: with its own version it starts again.
    fs::write(&store, now).unwrap();
    Skep::start_on(data_dir, &[]).await.health().await;
}

/// What needs root.
mod root {
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_vm_of_the_backup_that_lives_no_longer_is_lost_and_a_template_without_files_has_failed() {
        let (skep, kept_in) = (Skep::start().await, folder());
        let file = kept_in.path().join("store.backup");
        let pid = skep.boot_one().await;
        let snapshot = json!({"name": "kept"});
        let stored = skep.post(&format!("/api/swarm/vm/{pid}/snapshot"), &snapshot).await.ok(201);
        good(&run("backup", skep.data_dir.path(), &[text(&file)]));
        skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
        let data_dir = skep.stop();
        // A backup has the records of templates, and none of their files.
        let files = data_dir.path().join("templates").join(stored["id"].as_str().unwrap());
        fs::remove_dir_all(files).unwrap();
        good(&run("restore", data_dir.path(), &[text(&file)]));
        let skep = Skep::start_on(data_dir, &[]).await;
        assert_eq!(skep.get("/api/swarm/status").await.ok(200)["count"], 0);
        assert!(skep.log().contains("is lost"), "{}", skep.log());
        let metrics = skep.get("/metrics").await.ok(200);
        assert!(metrics.as_str().unwrap().contains("skep_vm_ends_total{reason=\"lost\"} 1"), "{metrics}");
        let template = async || skep.get("/api/templates/kept").await.ok(200);
        eventually("the state of the template", async || template().await["state"] == "failed").await;
        assert_eq!(template().await["error"], "its files are missing in the data directory");
        let boot = skep.post("/api/swarm/boot", &json!({"template": "kept"})).await;
        boot.refused(409, "template_not_ready");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_vm_booted_since_the_backup_ends_after_the_restore_and_both_sides_name_it() {
        let files = folder();
        let file = files.path().join("store.db");
        let skep = Skep::start().await;
        good(&run("backup", skep.data_dir.path(), &[text(&file)]));
        let booted = skep.post("/api/swarm/boot", &json!({})).await.ok(201);
        let id = booted["vms"][0]["id"].as_str().unwrap().to_owned();
        let wreck = skep.stop_and_leave_vms();
        let done = good(&run("restore", wreck.path(), &[text(&file)]));
        assert!(
            done.contains("VMs that were booted since the backup") && done.contains("ends those"),
            "{done}"
        );
        let skep = wreck.start().await;
        assert_eq!(skep.get("/api/swarm/status").await.ok(200)["count"], 0);
        let log = skep.log();
        let line = log
            .lines()
            .find(|line| line.contains(&format!("VM {id} is ended")))
            .unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("skep restore"), "{line}");
    }

    /// The folder of the store belongs to the server's user, who may put links there.
    #[tokio::test(flavor = "multi_thread")]
    async fn root_neither_copies_nor_replaces_files_that_the_servers_user_names_by_links() {
        let (skep, files) = (Skep::start().await, folder());
        let [saved, copy, canary] = ["saved", "copy", "canary"].map(|name| files.path().join(name));
        good(&run("backup", skep.data_dir.path(), &[text(&saved)]));
        // A store that only root can read.
        fs::copy(&saved, &canary).unwrap();
        let state = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (fs::read(path).unwrap(), found.uid(), found.mode(), found.ino())
        };
        let before = state(&canary);
        let data_dir = skep.stop();
        let own = data_dir.path().join("server");
        let (uid, gid) = fs::metadata(&own).map(|found| (found.uid(), found.gid())).unwrap();
        assert_ne!(uid, 0);
        for (name, verb, file, message) in [
            ("skep.db", "backup", &copy, "unable to open"),
            ("skep.db.restoring", "restore", &saved, "Permission denied"),
        ] {
            let path = own.join(name);
            let aside = path.with_extension("aside");
            let existed = fs::rename(&path, &aside).is_ok();
            symlink(&canary, &path).unwrap();
            lchown(&path, Some(uid), Some(gid)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), before.0, "the control: root can follow the link");
            refused(&run(verb, data_dir.path(), &[text(file)]), &[message]);
            assert_eq!(state(&canary), before);
            assert!(!copy.exists());
            fs::remove_file(&path).unwrap();
            if existed {
                fs::rename(aside, path).unwrap();
            }
        }
        good(&run("restore", data_dir.path(), &[text(&saved)]));
        good(&run("backup", data_dir.path(), &[text(&copy)]));
    }
}
