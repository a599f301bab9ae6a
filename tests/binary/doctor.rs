//! `skep doctor`: its checks, and the faults that it finds.

use std::{
    fs::{self, File, Permissions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};
use skep_harness::temp_dir;

use crate::{
    harness::{Skep, binary, images::with_images},
    templates::OTHER_BASE,
};

/// Its findings, and its exit code.
fn doctor(data_dir: &Path) -> (Vec<Value>, i32) {
    let mut command = Command::new(binary());
    let output =
        with_images(command.args(["doctor", "--json", "--data-dir"]).arg(data_dir)).output().unwrap();
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let findings = answer["findings"].as_array().unwrap().clone();
    let bad =
        findings.iter().any(|finding| ["missing", "wrong"].contains(&finding["state"].as_str().unwrap()));
    assert_eq!(answer["healthy"], !bad, "{answer}");
    (findings, output.status.code().unwrap())
}

#[track_caller]
fn state_of(findings: &[Value], check: &str) -> (String, String) {
    let finding = findings.iter().find(|finding| finding["check"] == check);
    let finding = finding.unwrap_or_else(|| panic!("{check} was not looked at: {findings:?}"));
    let text = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    (text("state"), format!("{} => {}", text("detail"), text("way_out")))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_looks_at_all_that_an_operator_must_know() {
    let skep = Skep::start().await;
    let (findings, code) = doctor(skep.data_dir.path());
    for check in [
        "root",
        "kernel",
        "cgroups",
        "landlock",
        "guest memory",
        "kvm",
        "swap",
        "smt",
        "clock",
        "engine",
        "qemu",
        "git",
        "template",
        "user",
        "data",
        "admin key",
        "data dir",
        "server data",
        "store",
        "roots",
        "egress names",
    ] {
        state_of(&findings, check);
    }
    for finding in &findings {
        assert_eq!(finding["state"] == "ok", finding["way_out"].is_null(), "{finding}");
    }
    let (state, message) = state_of(&findings, "store");
    assert!(state == "ok" && message.contains("whole"), "a server that runs is no fault: {message}");
    let bad =
        findings.iter().any(|finding| ["missing", "wrong"].contains(&finding["state"].as_str().unwrap()));
    assert_eq!(code, i32::from(bad));
}

#[test]
fn an_account_that_uses_up_the_names_is_found() {
    let dir = temp_dir();
    fs::create_dir(dir.path().join("keeper")).unwrap();
    let path = dir.path().join("keeper/egress-names.jsonl");
    let account = "acc_01jv0000000000000000000000";
    let write = |used: usize| {
        let record = |number: usize| {
            let users = json!([{"account": account, "uses": number < used}]);
            let record = json!({"name": format!("n{number}.test"), "users": users, "reused": false});
            format!("{:<1023}\n", record.to_string())
        };
        fs::write(&path, (0..6000).map(record).collect::<String>()).unwrap();
    };
    let found = || state_of(&doctor(dir.path()).0, "egress names");
    assert_eq!(found(), ("ok".to_owned(), "none in use => ".to_owned()));
    write(100);
    let detail = format!("100 of 65536 in use, most by {account}: 100 of 8192 => ");
    assert_eq!(found(), ("ok".to_owned(), detail));
    // Nine tenths of those that guests may choose.
    write(5600);
    let (state, message) = found();
    assert!(state == "warning" && message.contains(&format!("{account}: 5600")), "{state}: {message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_could_read_or_write_is_found() {
    let skep = Skep::start().await;
    let data_dir = skep.data_dir.path();
    let faults = [
        ("store", "server/skep.db", 0o600, 0o644, "chmod 600"),
        ("server data", "server", 0o700, 0o755, "chmod go="),
        ("data dir", "", 0o755, 0o777, "chmod go-w"),
        ("admin key", "admin.key", 0o600, 0o640, "chmod 600"),
    ];
    // All faults at once, because the doctor takes seconds.
    let (findings, _) = doctor(data_dir);
    for (check, path, _, bad, _) in faults {
        assert_eq!(state_of(&findings, check).0, "ok", "{check}");
        fs::set_permissions(data_dir.join(path), Permissions::from_mode(bad)).unwrap();
    }
    let (findings, code) = doctor(data_dir);
    assert_eq!(code, 1);
    for (check, path, good, _, way_out) in faults {
        let path = data_dir.join(path);
        let (state, message) = state_of(&findings, check);
        assert_eq!(state, "wrong", "{message}");
        assert!(
            message.contains(way_out) && message.contains(path.to_str().unwrap().trim_end_matches('/')),
            "{message}"
        );
        fs::set_permissions(&path, Permissions::from_mode(good)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_that_accounts_should_not_have_are_found() {
    let skep = Skep::start().await;
    for name in ["acme", "other"] {
        skep.post("/api/accounts", &json!({"name": name})).await.ok(201);
    }
    let data_dir = skep.stop();
    let (data_dir, beside) = (data_dir.path(), tempfile::tempdir().unwrap());
    let store = data_dir.join("server/skep.db");
    assert_eq!(state_of(&doctor(data_dir).0, "roots").0, "ok");
    let link = beside.path().join("link");
    std::os::unix::fs::symlink(data_dir.join("server"), &link).unwrap();
    std::os::unix::fs::symlink("/var", beside.path().join("elsewhere")).unwrap();
    let of_other = data_dir.join("workspaces/other/below");
    let faults = [
        (data_dir.join("server"), "server's own data"),
        (link, "server's own data"),
        (of_other, "`other`"),
        ("/proc/self".into(), "/proc"),
        (beside.path().join("elsewhere"), "leads through a link to /var"),
    ];
    let roots = json!(faults.each_ref().map(|(root, _)| root));
    tamper(&store, &format!("UPDATE accounts SET roots = '{roots}' WHERE name = 'acme'"));
    let (findings, _) = doctor(data_dir);
    // One for each root, in their order. The doctor also names the account that one of them belongs to.
    let of_acme = |finding: &&Value| {
        finding["check"] == "roots" && finding["detail"].as_str().unwrap().starts_with("account `acme`")
    };
    let found: Vec<&Value> = findings.iter().filter(of_acme).collect();
    assert_eq!(found.len(), faults.len(), "{findings:?}");
    for (finding, (root, named)) in found.iter().zip(faults) {
        assert_eq!(finding["state"], "warning", "{root:?}: {finding}");
        assert!(finding["detail"].as_str().unwrap().contains(named), "{root:?}: {finding}");
    }
}

#[test]
fn a_data_directory_where_nothing_can_be_written_is_found() {
    let (state, message) = {
        let (findings, _) = doctor(Path::new("/proc/skep-test"));
        state_of(&findings, "data")
    };
    assert!(state == "wrong" && message.contains("--data-dir"), "{message}");
}

/// Changes a row in the store of a stopped server.
pub(crate) fn tamper(store: &Path, sql: &str) {
    let script = "import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as store:
    assert store.execute(sys.argv[2]).rowcount == 1";
    let output = Command::new("python3").args(["-c", script]).arg(store).arg(sql).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_of_tickets_that_is_not_true_is_found() {
    let skep = Skep::start().await;
    let need = skep.post("/api/tickets", &json!({"title": "a"})).await.ok(201)["id"].clone();
    let made = skep.post("/api/tickets", &json!({"title": "b", "dependencies": [need]})).await.ok(201);
    let id = made["id"].as_str().unwrap();
    let data_dir = skep.stop();
    let store = data_dir.path().join("server/skep.db");
    for (counted, good) in [(1, true), (0, false)] {
        tamper(&store, &format!("UPDATE tickets SET unmet = {counted} WHERE id = '{id}'"));
        let (findings, _) = doctor(data_dir.path());
        let (state, message) = state_of(&findings, "store");
        assert_eq!(state, if good { "ok" } else { "wrong" }, "{message}");
        assert!(
            good || message.contains(&format!("`{id}` counts 0 open dependencies and has 1")),
            "{message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_damaged_is_found() {
    let data_dir = Skep::start().await.stop();
    let store = data_dir.path().join("server/skep.db");
    assert_eq!(state_of(&doctor(data_dir.path()).0, "store").0, "ok");
    let whole = fs::read(&store).unwrap();
    let mut file = File::options().write(true).open(&store).unwrap();
    // All but the first page, which says what the file is.
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&vec![0xa5; whole.len() - 4096]).unwrap();
    let (findings, code) = doctor(data_dir.path());
    let (state, message) = state_of(&findings, "store");
    assert_eq!((state.as_str(), code), ("wrong", 1), "{message}");
    assert!(message.contains("skep restore"), "{message}");
}

/// What needs root.
mod root {
    use super::*;

    /// In a mount namespace of its own.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_root_that_is_a_mount_of_a_folder_in_the_servers_data_is_found() {
        let skep = Skep::start().await;
        skep.post("/api/accounts", &json!({"name": "acme"})).await.ok(201);
        let (data_dir, beside) = (skep.stop(), tempfile::tempdir().unwrap());
        let deep = data_dir.path().join("server/one/deep");
        fs::create_dir_all(&deep).unwrap();
        tamper(
            &data_dir.path().join("server/skep.db"),
            &format!("UPDATE accounts SET roots = '[\"{}\"]' WHERE name = 'acme'", beside.path().display()),
        );
        // The control: without the mount it is a folder like any other.
        assert_eq!(state_of(&doctor(data_dir.path()).0, "roots").0, "ok");
        let script = "mount --bind \"$1\" \"$2\" && exec \"$3\" doctor --json --data-dir \"$4\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&deep).arg(beside.path());
        let output = with_images(command.arg(binary()).arg(data_dir.path())).output().unwrap();
        let answer: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let (state, message) = state_of(answer["findings"].as_array().unwrap(), "roots");
        assert!(state == "warning" && message.contains("server's own data"), "{state}: {message}");
    }

    /// On a mount of its own, in a namespace of its own.
    #[test]
    fn a_data_directory_on_a_file_system_that_is_mounted_read_only_is_found() {
        let data_dir = tempfile::tempdir().unwrap();
        fs::create_dir(data_dir.path().join("server")).unwrap();
        // The control first: the same folder, writable. Where little disk is free, that is a warning.
        assert_ne!(state_of(&doctor(data_dir.path()).0, "data").0, "wrong");
        for mounted in ["", "server"] {
            let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && exec \"$2\" doctor --json --data-dir \"$3\"";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script, "sh"]).arg(data_dir.path().join(mounted));
            let output = with_images(command.arg(binary()).arg(data_dir.path())).output().unwrap();
            let answer: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
            let (state, message) = state_of(answer["findings"].as_array().unwrap(), "data");
            assert_eq!((state.as_str(), output.status.code()), ("wrong", Some(1)), "{message}");
            assert!(
                message.contains("read-only") && message.contains(data_dir.path().to_str().unwrap()),
                "{message}"
            );
        }
    }

    /// The doctor's finding about the user that a server with these options runs as.
    fn user_of_the_server(options: &[&str]) -> (String, String) {
        let data_dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(binary());
        command.args(["doctor", "--json", "--data-dir"]).arg(data_dir.path()).args(options);
        let output = with_images(&mut command).output().unwrap();
        let answer: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        state_of(answer["findings"].as_array().unwrap(), "user")
    }

    #[test]
    fn a_server_that_will_run_as_root_is_found() {
        let (state, message) = user_of_the_server(&["--user", "root"]);
        assert_eq!(state, "warning", "{message}");
        assert!(
            message.contains("runs as root") && message.contains("another user with --user"),
            "{message}"
        );
        let (state, message) = user_of_the_server(&[]);
        assert_eq!(state, "ok", "the control: {message}");
        assert!(!message.contains("(uid 0)"), "{message}");
    }

    /// With another setting, so that the template of the VM is an old one.
    fn old_templates(skep: &Skep) -> Vec<Value> {
        let mut command = Command::new(binary());
        command.args(["doctor", "--json"]).args(OTHER_BASE).arg("--data-dir").arg(skep.data_dir.path());
        let answer: Value =
            serde_json::from_slice(&with_images(&mut command).output().unwrap().stdout).unwrap();
        let findings = answer["findings"].as_array().unwrap().clone();
        findings.into_iter().filter(|finding| finding["check"] == "old template").collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_old_template_is_kept_while_a_vm_needs_it() {
        let skep = Skep::start().await;
        let is_needed = |found: &[Value]| found.iter().any(|finding| finding["state"] == "ok");
        assert!(!is_needed(&old_templates(&skep)), "the control");
        let vm = skep.boot(1).await.remove(0);
        let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
        let found = old_templates(&skep);
        assert!(is_needed(&found), "a VM that runs: {found:?}");
        skep.post(&format!("{path}/pause"), &json!({"to": "disk"})).await.ok(200);
        let found = old_templates(&skep);
        assert!(is_needed(&found), "a VM on disk: {found:?}");
        skep.delete(&path).await.ok(200);
        let found = old_templates(&skep);
        assert!(!is_needed(&found) && !found.is_empty(), "{found:?}");
        for finding in found {
            assert!(finding["way_out"].as_str().unwrap().starts_with("rm -r"), "{finding}");
        }
    }
}
