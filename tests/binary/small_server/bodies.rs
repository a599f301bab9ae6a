//! The largest bodies that operations take.

use reqwest::Method;
use serde_json::json;

use super::requests::Request;
use crate::harness::Skep;

const MIB: usize = 1 << 20;
/// Maximum number of bytes around the content of a body.
const MAX_ENVELOPE: usize = 4 << 10;

/// One request of each kind with a large body.
pub(super) fn largest(root: &str) -> Vec<Request> {
    let text = "x".repeat(48 * MIB - MAX_ENVELOPE);
    let write = json!({"path": format!("{root}/written"), "content": text});
    let ticket = json!({"title": "t", "description": "x".repeat(16_000)});
    vec![
        Request::post("write of 48 MiB of text", "/api/files/write", &write),
        Request::post(
            "exec with 48 MiB for its input",
            "/api/exec",
            &json!({"command": "cat", "stdin": text}),
        ),
        Request::post("16 MiB of tickets", "/api/tickets/batch", &json!({"tickets": vec![ticket; 1_000]})),
    ]
}

pub(super) async fn requests(skep: &Skep, root: &str) -> Vec<Request> {
    let escapes = "\u{1}".repeat(8 * MIB - MAX_ENVELOPE);
    let path = format!("{root}/written");
    let digits = "A".repeat(48 * MIB - MAX_ENVELOPE);
    let names: Vec<String> = (0..200_000).map(|number| format!("{number:076}")).collect();
    let made = skep.post("/api/tickets", &json!({"title": "changed"})).await.ok(201);
    let one = format!("/api/tickets/{}", made["id"].as_str().unwrap());
    let lists = format!("{{\"path\": \"{path}\", \"content\": [{}[]]}}", "[],".repeat(15 * MIB));
    let printed = "head -c 2M /dev/zero | tr '\\0' '\\1'; head -c 2M /dev/zero | tr '\\0' '\\1' >&2";
    let mut all = largest(root);
    all.extend([
        Request::post(
            "write of 8 MiB of control characters",
            "/api/files/write",
            &json!({"path": path, "content": escapes}),
        ),
        Request::post(
            "write of 36 MiB as base64",
            "/api/files/write",
            &json!({"path": path, "content": digits, "encoding": "base64"}),
        ),
        Request::post("write of 15 million empty lists", "/api/files/write", &json!({}))
            .with(lists)
            .or(&[413]),
        Request::post("exec that prints control characters", "/api/exec", &json!({"command": printed})),
        Request::post(
            "add of 200,000 names",
            "/api/git/add",
            &json!({"path": format!("{root}/lines"), "files": names}),
        )
        .or(&[404, 413, 422]),
        Request::post("a ticket's change of 1 MiB", one, &json!({"metadata": {"list": vec![0; 30 << 10]}}))
            .by(Method::PATCH)
            .or(&[412]),
    ]);
    all
}
