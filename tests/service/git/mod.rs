//! The git operations over HTTP, on real repositories.

mod attacks;
mod credentials;
mod filters;
mod history;
mod host;
mod outside_roots;
mod races;
mod remotes;
mod workflows;

use std::{path::Path, process::Command};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::harness::{Skep, refused as parse_refusal};

/// Runs plain git, which follows all settings of the repository.
fn try_git(folder: impl AsRef<Path>, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("git");
    command.stdin(std::process::Stdio::null());
    // Git must not prompt for a password, and must not use the proxy or the askpass program of the environment.
    command.env("GIT_TERMINAL_PROMPT", "0");
    for name in
        ["GIT_ASKPASS", "SSH_ASKPASS", "http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"]
    {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("LC_ALL", "C.UTF-8");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.com");
    }
    let output = command.output().unwrap();
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), output_text)
}

/// Runs plain git, which must succeed.
fn git(folder: impl AsRef<Path>, arguments: &[&str]) -> String {
    let (done, output_text) = try_git(folder, arguments);
    assert!(done, "git {arguments:?}: {output_text}");
    output_text
}

/// A repository in the workspace with one commit.
fn repository(skep: &Skep, name: &str) -> String {
    let path = skep.at(name);
    std::fs::create_dir_all(&path).unwrap();
    git(&path, &["init", "-q", "-b", "main"]);
    std::fs::write(format!("{path}/file"), "one\n").unwrap();
    git(&path, &["add", "."]);
    git(&path, &["commit", "-qm", "First"]);
    path
}

async fn get(skep: &Skep, verb: &str, query: &str) -> Value {
    let response = skep.get(&format!("/api/git/{verb}?{query}")).await;
    let status = response.status();
    let body = response.json().await.unwrap();
    assert!(status.is_success(), "{verb}?{query}: {status} {body}");
    body
}

async fn send(skep: &Skep, verb: &str, body: Value) -> Response {
    skep.request(Method::POST, &format!("/api/git/{verb}")).json(&body).send().await.unwrap()
}

async fn post(skep: &Skep, verb: &str, body: Value) -> Value {
    let response = send(skep, verb, body).await;
    let status = response.status();
    let body = response.json().await.unwrap();
    assert!(status.is_success(), "{verb}: {status} {body}");
    body
}

/// The message of a refusal with this status and code.
async fn refused(response: Response, status: u16, code: &str) -> String {
    let refused = parse_refusal(response).await;
    assert_eq!((refused.status, refused.code.as_str()), (status, code), "{}", refused.message);
    refused.message
}

async fn commit(skep: &Skep, path: &str, content: &str, message: &str) -> Value {
    std::fs::write(format!("{path}/file"), content).unwrap();
    post(skep, "commit", json!({"path": path, "message": message, "all": true})).await
}
