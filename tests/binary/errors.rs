//! Refusals: their shape, their order, their messages.

use std::{fs, process::Command};

use reqwest::Method;
use serde_json::json;

use crate::harness::{Skep, eventually, faults, send};

#[tokio::test]
async fn a_request_without_a_key_reveals_nothing() {
    let skep = Skep::start().await;
    for path in ["/api/swarm/status", "/api/keys", "/api/nothing", "/api/swarm/vm/1"] {
        let answer = send(skep.bare(Method::GET, path)).await;
        assert_eq!(answer.refused(401, "missing_token"), "Missing token");
    }
    let wrong = send(skep.bare(Method::GET, "/api/keys").header("authorization", "Basic abc")).await;
    assert_eq!(wrong.refused(401, "invalid_token"), "Invalid token");
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_have_the_shape_of_every_refusal() {
    let skep = Skep::start().await;
    skep.get("/api/nothing").await.refused(404, "unknown_route");
    let answer = send(skep.request(Method::PUT, "/api/keys")).await;
    answer.refused(405, "method_not_allowed");
    assert!(answer.headers["allow"].to_str().unwrap().contains("POST"), "{answer:?}");
    send(skep.bare(Method::DELETE, "/api/health")).await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn a_body_that_is_no_json_is_told_what_is_wrong() {
    let skep = Skep::start().await;
    let raw = |body: &'static str| skep.request(Method::POST, "/api/keys").body(body);
    send(raw("{}").header("content-type", "text/plain")).await.refused(415, "not_json");
    let json = |body| raw(body).header("content-type", "application/json");
    send(json("{")).await.refused(400, "malformed_body");
    let unknown = send(json(r#"{"name": "x", "role": "agent", "nmae": 1}"#)).await;
    assert!(unknown.refused(400, "unknown_field").contains("nmae"), "{unknown:?}");
}

#[tokio::test]
async fn a_count_that_is_no_number_of_vms_names_itself_and_its_range() {
    let skep = Skep::start().await;
    for count in [json!(0), json!(-1), json!(1.5), json!(1e9), json!("x"), json!(true), json!(null)] {
        let answer = skep.post("/api/swarm/boot", &json!({ "count": count })).await;
        let message = answer.refused(400, "invalid_value");
        assert!(message.contains("count"), "{count}: {message}");
    }
}

#[tokio::test]
async fn the_cause_of_an_internal_error_is_logged_with_its_request_and_is_not_in_the_answer() {
    let skep = Skep::start().await;
    let script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('DROP TABLE waitlist')";
    let store = skep.data_dir.path().join("server/skep.db");
    assert!(Command::new("python3").args(["-c", script]).arg(store).status().unwrap().success());
    let request = skep.request(Method::GET, "/api/waitlist").header("x-request-id", "without-table");
    let answer = send(request).await;
    assert_eq!(answer.refused(500, "internal"), "internal error");
    assert_eq!(answer.headers["x-request-id"], "without-table");
    eventually("the line of the log", async || !faults::lines_of(&skep.log(), 500).is_empty()).await;
    let log = skep.log();
    let [line] = faults::lines_of(&log, 500)[..] else { panic!("{log}") };
    assert!(line.contains("without-table") && line.contains("no such table: waitlist"), "{line}");
    // The harness fails a test whose log has a line with status 500.
    fs::write(skep.data_dir.path().join("test.log"), "").unwrap();
}

/// The control of the harness's check for status 500: the log has the status of every answer, in both formats.
#[tokio::test]
async fn a_log_tells_the_status_of_every_answer() {
    for options in [&[][..], &["--log-format", "json"]] {
        let skep = Skep::start_on(tempfile::tempdir().unwrap(), options).await;
        skep.get("/api/nothing").await.refused(404, "unknown_route");
        assert_eq!(faults::lines_of(&skep.log(), 404).len(), 1, "{}", skep.log());
        assert!(faults::lines_of(&skep.log(), 500).is_empty(), "{}", skep.log());
    }
    let faulty =
        "ERROR skep_server::request: request x: no such table request_id=\"x\" status=500 duration_ms=1.0";
    assert!(std::panic::catch_unwind(|| faults::assert_none_in(faulty)).is_err());
}
