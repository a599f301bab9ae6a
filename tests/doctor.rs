//! `skep doctor`: what it looks at, and that it finds what is wrong.

use std::{
    fs::{self, File, Permissions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use crate::harness::{Skep, binary};

/// Its findings, and its exit code.
fn doctor(data_dir: &Path) -> (Vec<Value>, i32) {
    let output =
        Command::new(binary()).args(["doctor", "--json", "--data-dir"]).arg(data_dir).output().unwrap();
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
        "kvm",
        "swap",
        "smt",
        "clock",
        "engine",
        "qemu",
        "template",
        "user",
        "data",
        "admin key",
        "data dir",
        "server data",
        "store",
        "roots",
    ] {
        state_of(&findings, check);
    }
    for finding in &findings {
        assert_eq!(finding["state"] == "ok", finding["way_out"].is_null(), "{finding}");
    }
    let (state, said) = state_of(&findings, "store");
    assert!(state == "ok" && said.contains("whole"), "a server that runs is no fault: {said}");
    let bad =
        findings.iter().any(|finding| ["missing", "wrong"].contains(&finding["state"].as_str().unwrap()));
    assert_eq!(code, i32::from(bad));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_could_read_or_write_is_found() {
    let skep = Skep::start().await;
    let data_dir = skep.data_dir.path();
    for (check, path, good, bad, way_out) in [
        ("store", "server/skep.db", 0o600, 0o644, "chmod 600"),
        ("server data", "server", 0o700, 0o755, "chmod go="),
        ("data dir", "", 0o755, 0o777, "chmod go-w"),
        ("admin key", "admin.key", 0o600, 0o640, "chmod 600"),
    ] {
        let path = data_dir.join(path);
        assert_eq!(state_of(&doctor(data_dir).0, check).0, "ok", "{check}");
        fs::set_permissions(&path, Permissions::from_mode(bad)).unwrap();
        let (findings, code) = doctor(data_dir);
        let (state, said) = state_of(&findings, check);
        assert_eq!((state.as_str(), code), ("wrong", 1), "{said}");
        assert!(
            said.contains(way_out) && said.contains(path.to_str().unwrap().trim_end_matches('/')),
            "{said}"
        );
        fs::set_permissions(&path, Permissions::from_mode(good)).unwrap();
    }
}

/// Changes the store of a server that does not run, as no server would.
fn tamper(store: &Path, sql: &str) {
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
    for (counted, good) in [(1, true), (0, false), (1, true)] {
        tamper(&store, &format!("UPDATE tickets SET unmet = {counted} WHERE id = '{id}'"));
        let (findings, _) = doctor(data_dir.path());
        let (state, said) = state_of(&findings, "store");
        assert_eq!(state, if good { "ok" } else { "wrong" }, "{said}");
        assert!(good || said.contains(&format!("`{id}` counts 0 open dependencies and has 1")), "{said}");
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
    let (state, said) = state_of(&findings, "store");
    assert_eq!((state.as_str(), code), ("wrong", 1), "{said}");
    assert!(said.contains("skep restore"), "{said}");
}
