//! What the command prints about an error: a key, a connection, or a refusal, whose message it prints as the server sent it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use reqwest::Method;
use serde_json::{Value, json};

use super::{skep, stdout};
use crate::harness::{Skep, binary, command, output_of, step, temp_dir};

/// Nobody listens there. A port that was free a moment ago may be that of another test's server by now.
const UNUSED_URL: &str = "http://127.0.0.1:1";

/// Runs the command with these variables and no others of skep.
fn bare(arguments: &[&str], variables: &[(&str, &str)], data_dir: &Path) -> Output {
    Command::new(binary())
        .args(arguments)
        .env_remove("SKEP_URL")
        .env_remove("SKEP_API_KEY")
        .env("SKEP_DATA_DIR", data_dir)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// The only line of an error.
#[track_caller]
fn message(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim().to_owned()
}

#[tokio::test]
async fn errors_are_described_by_what_a_caller_of_the_command_can_do() {
    let server = Skep::start().await;
    step("keys that are missing, unknown or revoked", keys(&server)).await;
    step("servers that cannot be reached", connections(&server)).await;
    step("refusals", refusals(&server)).await;
    step("errors as JSON", async { errors_as_json(&server) }).await;
    step("answers as JSON", answers_as_json(&server)).await;
}

async fn keys(server: &Skep) {
    let empty = tempfile::tempdir().unwrap();
    let url = ("SKEP_URL", server.url.as_str());
    let error_text = message(&bare(&["ps"], &[url], empty.path()), 1);
    let file = empty.path().join("admin.key");
    assert!(error_text.contains(&format!("{} does not exist", file.display())), "{error_text}");
    assert!(error_text.contains("SKEP_API_KEY") && error_text.contains("--data-dir"), "{error_text}");

    let unknown = format!("sk-skep-prod-{}", "0f".repeat(32));
    let error_text = message(&bare(&["ps"], &[url, ("SKEP_API_KEY", &unknown)], empty.path()), 1);
    assert!(error_text.contains("sk-skep-prod-0f0f0f0f... from SKEP_API_KEY"), "{error_text}");
    fs::write(&file, &unknown).unwrap();
    let error_text = message(&bare(&["ps"], &[url], empty.path()), 1);
    assert!(
        error_text.contains(&format!("from {}", file.display())) && !error_text.contains(&unknown),
        "{error_text}"
    );
    let error_text = message(&bare(&["ps", "--api-key", "secret"], &[url], empty.path()), 1);
    assert!(error_text.contains("--api-key is not a key") && !error_text.contains("secret"), "{error_text}");

    let made = server.post("/api/keys", &json!({"name": "brief", "role": "agent"})).await.ok(201);
    server.delete(&format!("/api/keys/{}", made["id"].as_str().unwrap())).await.ok(200);
    let key = ("SKEP_API_KEY", made["key"].as_str().unwrap());
    let error_text = message(&bare(&["ps"], &[url, key], empty.path()), 1);
    assert!(
        error_text.contains(made["prefix"].as_str().unwrap())
            && error_text.contains("was revoked or has expired"),
        "{error_text}"
    );
}

async fn connections(plain: &Skep) {
    let data_dir = temp_dir();
    let secure = Skep::start_on(data_dir, &["--tls", "self-signed"]).await;
    let ps = |server: &Skep, url: &str| message(&skep(server, &["ps", "--url", url], ""), 1);

    let error_text = ps(plain, &plain.url.replace("http:", "https:"));
    assert!(error_text.contains("does not use TLS") && error_text.contains("http://"), "{error_text}");
    let error_text = ps(&secure, &secure.url);
    assert!(error_text.contains("does not trust") && error_text.contains("--ca-file"), "{error_text}");
    let error_text = ps(&secure, &secure.url.replace("https:", "http:"));
    assert!(error_text.contains("accepts https only"), "{error_text}");
    let error_text = ps(plain, UNUSED_URL);
    assert!(
        error_text.contains("no server is running at") && error_text.contains("skep serve"),
        "{error_text}"
    );

    let certificate = secure.data_dir.path().join("server/tls/certificate.pem");
    let certificate = certificate.to_str().unwrap();
    let trusted = skep(&secure, &["whoami", "--ca-file", certificate], "");
    assert!(stdout(&trusted).contains("account  ") && trusted.status.success(), "{trusted:?}");
    let trusted = output_of(command(&secure, &["whoami"]).env("SKEP_CA_FILE", certificate));
    assert!(stdout(&trusted).contains("account  ") && trusted.status.success(), "{trusted:?}");
}

async fn refusals(server: &Skep) {
    assert!(skep(server, &["git", "init", "work"], "").status.success());
    let error_text = message(&skep(server, &["git", "commit", "-C", "work", "-m", "x"], ""), 1);
    assert!(error_text.ends_with("stage changes first, or set `allow_empty`"), "{error_text}");
    let root = stdout(&skep(server, &["whoami", "--json"], "")).parse::<Value>().unwrap()["roots"][0].clone();
    let missing = format!("/api/files/read?path={}/missing", root.as_str().unwrap());
    let key = "key_01jv0000000000000000000000";
    for (arguments, answer, code) in [
        (&["cat", "missing"][..], server.get(&missing).await, "unknown_path"),
        (&["keys", "revoke", key], server.delete(&format!("/api/keys/{key}")).await, "unknown_key"),
    ] {
        let sent = answer.refused(404, code);
        assert_eq!(message(&skep(server, arguments, ""), 1), format!("skep: {sent}"));
        assert!(sent.contains("; list "), "{sent}");
    }
}

fn errors_as_json(server: &Skep) {
    let error = |output: &Output, code: i32| -> Value { message(output, code).parse().unwrap() };
    let refused = error(&skep(server, &["cat", "--json", "missing"], ""), 1);
    assert_eq!((&refused["status"], &refused["code"]), (&json!(404), &json!("unknown_path")), "{refused}");
    let id = refused["request_id"].as_str().unwrap();
    assert!(!id.is_empty() && refused["message"].as_str().unwrap().contains("missing"), "{refused}");
    let away = error(&skep(server, &["ps", "--json", "--url", UNUSED_URL], ""), 1);
    assert_eq!((&away["status"], &away["code"]), (&Value::Null, &json!("unreachable")), "{away}");
    let usage = error(&skep(server, &["ps", "--json", "--bogus"], ""), 2);
    assert_eq!(usage["code"], "usage", "{usage}");
}

/// With `--json`, a verb prints the API's answer byte for byte.
async fn answers_as_json(server: &Skep) {
    let ticket = json!({"title": "ü", "metadata": {"second": 1, "first": [0.5]}});
    let made = server.post("/api/tickets", &ticket).await.ok(201);
    let id = made["id"].as_str().unwrap();
    for (arguments, path) in [
        (&["ticket", "show", id, "--json"][..], format!("/api/tickets/{id}")),
        (&["ticket", "list", "--json"], "/api/tickets".to_owned()),
    ] {
        let answer = server.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
        assert!(answer.contains(id), "{answer}");
        assert_eq!(stdout(&skep(server, arguments, "")), format!("{answer}\n"));
    }
}

#[tokio::test]
async fn a_usage_line_has_nothing_that_variables_set_and_foreign_verbs_lead_to_ours() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("SKEP_URL", "http://127.0.0.1:1"), ("SKEP_API_KEY", "x")];
    let wrong = bare(&["boot", "--bogus"], &variables, folder.path());
    let error_text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{error_text}");
    assert!(
        error_text.contains("Usage: skep boot [OPTIONS]") && !error_text.contains("--url"),
        "{error_text}"
    );
    for (word, verb) in
        [("stop", "skep cleanup"), ("list", "skep ps"), ("shell", "skep exec"), ("version", "skep --version")]
    {
        let error_text = message(&bare(&[word], &[], folder.path()), 2);
        assert!(error_text.contains(verb), "{word}: {error_text}");
    }
}
