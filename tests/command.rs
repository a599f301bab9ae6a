//! The command: a client of the API, with people's output, exit codes and streams.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::harness::{Skep, binary};

fn skep(server: &Skep, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(binary())
        .args(arguments)
        .env("SKEP_URL", &server.url)
        .env("SKEP_API_KEY", &server.key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may not read its input at all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swarm_is_booted_used_and_ended_by_command() {
    let server = Skep::start().await;
    let booted = skep(&server, &["boot", "-n", "2", "--json"], "");
    let answer: Value = serde_json::from_str(&stdout(&booted)).unwrap_or_else(|_| panic!("{booted:?}"));
    let pid = answer["vms"][0]["pid"].to_string();
    let listed = stdout(&skep(&server, &["ps"], ""));
    assert!(listed.contains(&pid) && listed.contains(answer["vms"][1]["ip"].as_str().unwrap()), "{listed}");

    let run = skep(&server, &["exec", &pid, "--", "sh", "-c", "cat; echo err >&2; exit 9"], "through ü\n");
    assert_eq!(run.status.code(), Some(9), "{run:?}");
    assert_eq!(stdout(&run), "through ü\n");
    assert_eq!(run.stderr, b"err\n");

    assert!(skep(&server, &["rm", &pid], "").status.success());
    let gone = skep(&server, &["exec", &pid, "true"], "");
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains(&pid), "{gone:?}");
    assert!(stdout(&skep(&server, &["cleanup"], "")).contains('1'));
}

#[tokio::test]
async fn keys_are_made_and_revoked_without_a_server() {
    let data_dir = Skep::start().await.stop();
    let dir = data_dir.path().to_str().unwrap().to_owned();
    let keys = |arguments: &[&str]| {
        let output =
            Command::new(binary()).arg("keys").args(arguments).args(["--data-dir", &dir]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let made = keys(&["create", "--name", "later", "--role", "operator", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert!(keys(&["list"]).contains("later"));

    let server = Skep::start_on(data_dir, &[]).await;
    let ask = || {
        crate::harness::send(
            server.bare(reqwest::Method::GET, "/api/whoami").bearer_auth(made["key"].as_str().unwrap()),
        )
    };
    ask().await.ok(200);
    keys(&["revoke", made["id"].as_str().unwrap()]);
    ask().await.refused(403, "token_expired");
}

#[tokio::test]
async fn the_doctor_names_the_engine_and_why() {
    let output = Command::new(binary()).args(["doctor", "--json"]).output().unwrap();
    let said = stdout(&output);
    assert!(said.contains("qemu"), "{said}");
    assert!(said.contains("landlock") || said.contains("Landlock"), "{said}");
}
