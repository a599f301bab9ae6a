//! Commands on the server, by a helper without control groups. `tests/binary/programs.rs` tests them with control groups.

use std::{fs, path::PathBuf, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use skep_api::Scope;

use crate::{
    clock::advance_clock,
    harness::{Skep, eventually, is_alive, refused},
};

async fn exec(skep: &Skep, body: Value) -> Value {
    let response = skep.request(Method::POST, "/api/exec").json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

async fn run(skep: &Skep, command: &str) -> Value {
    exec(skep, json!({"command": command})).await
}

#[tokio::test]
async fn a_command_runs_at_the_first_root_with_a_clean_environment() {
    let skep = Skep::start().await;
    let root = fs::canonicalize(skep.at("")).unwrap();
    let outcome = run(&skep, "pwd; env; echo problem >&2; exit 3").await;
    assert_eq!(outcome["exit_code"], 3);
    assert_eq!(outcome["stderr"], "problem\n");
    let mut lines: Vec<&str> = outcome["stdout"].as_str().unwrap().lines().collect();
    assert_eq!(lines.remove(0), root.to_str().unwrap());
    lines.retain(|line| !line.starts_with("PWD="));
    lines.sort_unstable();
    assert_eq!(lines, [format!("HOME={}", skep.at("").trim_end_matches('/')).as_str(), "PATH=/usr/bin:/bin"]);

    fs::create_dir(skep.at("sub")).unwrap();
    let body =
        json!({"command": "pwd; cat; echo $A", "cwd": skep.at("sub"), "stdin": "in\n", "env": {"A": "b"}});
    let expected = format!("{}/sub\nin\nb\n", root.display());
    assert_eq!(exec(&skep, body).await["stdout"], expected);
    // A relative directory begins at the first root.
    fs::create_dir(skep.at("sub/deep")).unwrap();
    for (cwd, at) in [("sub/deep", "/sub/deep"), ("./sub/../sub", "/sub"), (".", "")] {
        let outcome = exec(&skep, json!({"command": "pwd", "cwd": cwd})).await;
        assert_eq!(outcome["stdout"], format!("{}{at}\n", root.display()), "{cwd}");
    }
}

#[tokio::test]
async fn each_place_needs_its_own_scope() {
    let skep = Skep::start().await;
    let (on_server, _) = skep.key(&[Scope::ServerAdmin]).await;
    let (in_vms, _) = skep.key(&[Scope::SwarmExec]).await;
    let ask = async |key: &str, body: Value| {
        skep.bare(Method::POST, "/api/exec").bearer_auth(key).json(&body).send().await.unwrap()
    };
    let (here, there) = (json!({"command": "id"}), json!({"command": "id", "vm": 4242}));
    assert_eq!(ask(&on_server, here.clone()).await.status(), 200);
    for (key, body, code) in [
        (&on_server, &there, "scope_missing"),
        (&in_vms, &here, "scope_missing"),
        (&in_vms, &there, "swarm_unavailable"),
    ] {
        assert_eq!(refused(ask(key, body.clone()).await).await.code, code, "{body}");
    }
}

#[tokio::test]
async fn invalid_commands_are_refused_by_name() {
    let skep = Skep::start().await;
    fs::write(skep.at("file"), "").unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), skep.at("way-out")).unwrap();
    let at = |name: &str| json!(skep.at(name));
    for (field, value, status, code) in [
        ("timeout", json!(0), 400, "invalid_value"),
        ("timeout", json!(-1), 400, "invalid_value"),
        ("timeout", json!(1e18), 400, "invalid_value"),
        ("timeout", json!("NaN"), 400, "invalid_value"),
        ("cwd", json!(""), 400, "invalid_value"),
        ("cwd", json!("missing"), 404, "unknown_path"),
        ("cwd", json!("../.."), 403, "path_outside_roots"),
        ("cwd", json!("/etc"), 403, "path_outside_roots"),
        ("cwd", json!(outside.path()), 403, "path_outside_roots"),
        ("cwd", at("way-out"), 403, "path_outside_roots"),
        ("cwd", at("../../"), 403, "path_outside_roots"),
        ("cwd", at("missing"), 404, "unknown_path"),
        ("cwd", at("file"), 409, "not_a_directory"),
        ("env", json!({"A=B": "c"}), 400, "invalid_value"),
        ("command", json!("a\0b"), 400, "invalid_value"),
        ("command", json!("x".repeat(200_000)), 400, "invalid_value"),
    ] {
        let mut body = json!({"command": "id"});
        body[field] = value.clone();
        let answer = skep.request(Method::POST, "/api/exec").json(&body).send().await.unwrap();
        let found = refused(answer).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{field}: {}", found.message);
        let named = if field == "cwd" { "directory" } else { field };
        assert!(found.message.contains(named) || found.message.contains(field), "{}", found.message);
    }
    // `NaN` is not valid JSON.
    let raw = skep.post("/api/exec", r#"{"command": "id", "timeout": NaN}"#).await;
    assert_eq!(refused(raw).await.status, 400);
}

#[tokio::test]
async fn a_program_reaches_the_roots_and_nothing_beside_them() {
    let skep = Skep::start().await;
    let outside = tempfile::tempdir().unwrap();
    let canary = outside.path().join("canary");
    fs::write(&canary, "seen").unwrap();
    let other = PathBuf::from(skep.at("../other"));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("canary"), "seen").unwrap();
    std::os::unix::fs::symlink(&canary, skep.at("link")).unwrap();
    let store = skep.data.path().join("skep.db");
    for path in [&canary, &other.join("canary"), &PathBuf::from(skep.at("link")), &store] {
        // The control: a process without a fence can read it.
        assert!(fs::read(path).is_ok());
        let outcome =
            run(&skep, &format!("cat {0}; echo x >> {0}; ls {1}", path.display(), outside.path().display()))
                .await;
        assert_eq!(outcome["stdout"], "", "{outcome}");
        assert!(outcome["stderr"].as_str().unwrap().contains("Permission denied"), "{outcome}");
    }
    assert_eq!(fs::read(&canary).unwrap(), b"seen");
    let memory = format!("head -c1 /proc/{}/mem", std::process::id());
    assert_eq!(run(&skep, &memory).await["stdout"], "");
    // Its children are confined too.
    let nested = format!("sh -c 'setsid sh -c \"cat {}\"'", canary.display());
    assert_eq!(run(&skep, &nested).await["stdout"], "");
    let inside = run(&skep, "echo kept > own && cat own && mkdir d && mv own d/ && /usr/bin/env true").await;
    assert_eq!((&inside["exit_code"], &inside["stdout"]), (&json!(0), &json!("kept\n")), "{inside}");
}

#[tokio::test]
async fn the_timeout_ends_detached_processes_too() {
    let skep = Skep::start().await;
    let file = PathBuf::from(skep.at("pid"));
    let daemon =
        "(setsid sh -c 'echo $$ > pid; exec sleep 600' > /dev/null 2>&1 &); while [ ! -s pid ]; do :; done";
    let body = json!({"command": format!("{daemon}; sleep 600"), "timeout": 20_000});
    let passing = async {
        eventually("the daemon", async || is_alive(&file)).await;
        advance_clock(Duration::from_secs(20)).await;
    };
    let (outcome, ()) = tokio::join!(exec(&skep, body), passing);
    assert_eq!((&outcome["timed_out"], &outcome["exit_code"]), (&json!(true), &Value::Null), "{outcome}");
    eventually("the daemon's end", async || file.exists() && !is_alive(&file)).await;

    // The control: where the command ended by itself, the detached process continues.
    fs::remove_file(&file).unwrap();
    assert_eq!(run(&skep, daemon).await["exit_code"], 0);
    assert!(is_alive(&file));
    let pid = fs::read_to_string(&file).unwrap();
    run(&skep, &format!("kill {pid}")).await;
    eventually("the end of what was left", async || !is_alive(&file)).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_its_command() {
    let skep = Skep::start().await;
    for stream in [false, true] {
        let file = PathBuf::from(skep.at("running"));
        let body =
            json!({"command": "echo $$ > running; exec sleep 600", "stream": stream, "timeout": 900_000});
        let call = skep.request(Method::POST, "/api/exec").json(&body).send();
        let call = tokio::spawn(async move {
            let mut response = call.await.unwrap();
            while response.chunk().await.unwrap().is_some() {}
        });
        eventually("the command", async || fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')))
            .await;
        assert!(is_alive(&file));
        call.abort();
        eventually("its end", async || !is_alive(&file)).await;
        fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn a_streamed_command_sends_its_output_and_its_exit() {
    let skep = Skep::start().await;
    let body = json!({"command": "echo one; echo two >&2; exit 4", "stream": true});
    let response = skep.request(Method::POST, "/api/exec").json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.headers().contains_key("skep-exec-id"));
    let text = response.text().await.unwrap();
    for part in [
        "event: stdout\ndata: {\"data\":\"one\\n\"",
        "event: stderr",
        "two",
        "event: exit",
        "\"exit_code\":4",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn output_is_kept_to_its_bounds() {
    let skep = Skep::start().await;
    let outcome =
        run(&skep, "head -c 3000000 /dev/zero | tr '\\0' x; head -c 10 /dev/zero | tr '\\0' y >&2").await;
    assert_eq!(outcome["truncated"], true);
    let stdout = outcome["stdout"].as_str().unwrap();
    assert!((1 << 20..(1 << 20) + 200).contains(&stdout.len()), "{}", stdout.len());
    assert_eq!(outcome["stderr"], "yyyyyyyyyy");
}
