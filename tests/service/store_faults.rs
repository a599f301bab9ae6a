//! A locked, missing or full store: requests are refused with 503, health reports it, and the server recovers. A damaged
//! store: the answer is 500.

use std::{fs, time::Duration};

use reqwest::Method;
use rusqlite::Connection;
use serde_json::Value;

use crate::harness::{Options, Refused, Skep, eventually, faults, refused};

/// A server that soon gives up a locked store.
async fn start() -> Skep {
    Skep::start_with(Options { busy_timeout: Duration::from_millis(100), ..Options::default() }).await
}

async fn health(skep: &Skep) -> u16 {
    skep.bare(Method::GET, "/api/health").send().await.unwrap().status().as_u16()
}

async fn make_key(skep: &Skep, name: &str) -> reqwest::Response {
    skep.post("/api/keys", &format!("{{\"name\": \"{name}\", \"role\": \"agent\"}}")).await
}

async fn assert_unavailable(skep: &Skep, name: &str) {
    let Refused { status, code, message } = refused(make_key(skep, name).await).await;
    assert_eq!((status, code.as_str()), (503, "store_unavailable"), "{message}");
    assert!(!message.contains("skep.db"), "callers learn no path: {message}");
    let response = skep.bare(Method::GET, "/api/health").send().await.unwrap();
    let Refused { status, code, .. } = refused(response).await;
    assert_eq!((status, code.as_str()), (503, "store_unavailable"));
}

async fn assert_available(skep: &Skep, name: &str) {
    assert_eq!(make_key(skep, name).await.status(), 201);
    // It is refused where a write takes longer than two seconds.
    eventually("its health", async || health(skep).await == 200).await;
    let list: Value = skep.get("/api/keys").await.json().await.unwrap();
    let names: Vec<&str> =
        list["keys"].as_array().unwrap().iter().map(|key| key["name"].as_str().unwrap()).collect();
    assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{names:?}");
    assert!(!names.contains(&"refused"), "what was refused left something: {names:?}");
}

#[tokio::test]
async fn a_locked_store_is_reported_and_recovers() {
    let skep = start().await;
    let other = Connection::open(skep.data.path().join("skep.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_unavailable(&skep, "refused").await;
    assert_eq!(skep.get("/api/whoami").await.status(), 200, "reading goes on");
    other.execute_batch("ROLLBACK").unwrap();
    assert_available(&skep, "later").await;
}

#[tokio::test]
async fn a_removed_store_is_reported_and_recovers() {
    let skep = start().await;
    let (database, elsewhere) = (skep.data.path().join("skep.db"), skep.data.path().join("elsewhere"));
    fs::rename(&database, &elsewhere).unwrap();
    assert_unavailable(&skep, "refused").await;
    // Another file in its place must not be used as the store.
    fs::write(&database, "").unwrap();
    assert_unavailable(&skep, "refused").await;
    assert_eq!(fs::metadata(&database).unwrap().len(), 0);
    fs::rename(&elsewhere, &database).unwrap();
    assert_available(&skep, "later").await;
}

#[tokio::test]
async fn a_failure_of_the_server_is_500_and_only_the_log_has_its_cause() {
    let skep = Skep::start().await;
    let database = Connection::open(skep.data.path().join("skep.db")).unwrap();
    database.execute_batch("DROP TABLE waitlist").unwrap();
    let request = skep.request(Method::GET, "/api/waitlist").header("x-request-id", "failure-1");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "failure-1");
    let Refused { status, code, message } = refused(answer).await;
    assert_eq!((status, code.as_str(), message.as_str()), (500, "internal", "internal error"));
    // The harness fails a test whose log has such a line, unless it is expected.
    let logged = faults::unexpected();
    faults::expect_them();
    let has_cause = |line: &String| line.contains("failure-1") && line.contains("no such table: waitlist");
    assert!(logged.iter().any(has_cause), "{logged:?}");
}
