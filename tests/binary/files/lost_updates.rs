//! Callers with one tag, in both places: one of them writes, the others are refused.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use super::fixture::Fixture;
use crate::harness::send;

const WRITERS: usize = 16;
const ROUNDS: usize = 3;

pub(super) async fn races(fixture: &Fixture<'_>) {
    fixture.shell("mkdir races; ln -s races other; ln -s races/file link").await;
    let first = fixture.write(&json!({"path": fixture.at("races/file"), "content": "first"})).await.ok(201);
    let mut tag = first["etag"].as_str().unwrap().to_owned();
    for round in 0..ROUNDS {
        tag = race(fixture, round, &tag).await;
    }
}

/// The tag of the one that won.
async fn race(fixture: &Fixture<'_>, round: usize, tag: &str) -> String {
    let writers = (0..WRITERS).map(async |n| {
        let name = ["races/file", "other/file", "link"][n % 3];
        let content = format!("round {round} writer {n}");
        let answer = if n % 2 == 0 {
            let body = json!({"path": fixture.at(name), "content": content});
            fixture.write_if(&body, "If-Match", tag).await
        } else {
            let request = fixture.request(Method::PUT, "/api/files/raw", &fixture.at(name), &[]);
            send(request.header("if-match", tag).body(content.clone())).await
        };
        (content, answer)
    });
    let (won, refused): (Vec<_>, Vec<_>) =
        join_all(writers).await.into_iter().partition(|(_, answer)| answer.status == 200);
    assert_eq!(won.len(), 1, "{fixture:?}: round {round}: {won:?}");
    for (_, answer) in refused {
        answer.refused(412, "precondition_failed");
    }
    let (content, answer) = won.into_iter().next().unwrap();
    let found = fixture.read("races/file", &[]).await.ok(200);
    let written = answer.ok(200);
    assert_eq!((&found["content"], &found["etag"]), (&json!(content), &written["etag"]), "{fixture:?}");
    written["etag"].as_str().unwrap().to_owned()
}
