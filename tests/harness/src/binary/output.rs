//! What commands print.

use std::process::Output;

use serde_json::{Value, json};

use super::Skep;

/// What a command printed, without the end of its last line. It must have succeeded.
#[track_caller]
pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim_end().to_owned()
}

/// The JSON that a command printed. It must have succeeded.
#[track_caller]
pub fn answer(output: &Output) -> Value {
    serde_json::from_str(&printed(output)).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The standard output of a command in the server's workspace.
pub async fn stdout_on_server(skep: &Skep, command: &str) -> String {
    let answer = skep.post("/api/exec", &json!({"command": command})).await.ok(200);
    answer["stdout"].as_str().unwrap().to_owned()
}

/// Runs one step of a test that has several on one server. The output of a failed test names the steps that began.
pub async fn step(name: &str, step: impl Future<Output = ()>) {
    println!("step: {name}");
    step.await;
}
