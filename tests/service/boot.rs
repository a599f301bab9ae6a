//! The validation of `POST /api/swarm/boot` and exec. A valid request ends at the missing swarm.

use reqwest::Method;
use skep_api::Scope;

use crate::harness::{Refused, Skep, refused};

/// The answer to a valid request, because there is no swarm.
const VALID: (u16, &str) = (503, "swarm_unavailable");

#[tokio::test]
async fn a_count_is_a_whole_number_within_the_quota() {
    let skep = Skep::start().await;
    for count in ["0", "-1", "1.5", "1e9", "1001", "\"x\"", "\"3\"", "true", "null", "[]", "1e300"] {
        let body = format!("{{\"count\": {count}}}");
        let Refused { status, code, message } = refused(skep.post("/api/swarm/boot", &body).await).await;
        assert_eq!((status, code.as_str()), (400, "invalid_value"), "{count}");
        assert!(message.contains("`count`"), "{message}");
        assert!(message.contains("from 1 to 1000") && message.contains("max_vms"), "{message}");
    }
    for count in ["1", "1000", "3.0"] {
        let body = format!("{{\"count\": {count}}}");
        let Refused { status, code, .. } = refused(skep.post("/api/swarm/boot", &body).await).await;
        assert_eq!((status, code.as_str()), VALID, "{count}");
    }
}

#[tokio::test]
async fn no_body_an_empty_one_and_an_empty_object_mean_one_vm() {
    let skep = Skep::start().await;
    let boot = || skep.request(Method::POST, "/api/swarm/boot");
    for request in [
        boot(),
        boot().body(""),
        boot().header("content-type", "text/plain").body(""),
        boot().header("content-type", "application/json").body("{}"),
    ] {
        let Refused { status, code, .. } = refused(request.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), VALID);
    }
}

#[tokio::test]
async fn unknown_boot_fields_are_refused_by_name() {
    let skep = Skep::start().await;
    for (body, code, name) in [
        (r#"{"cuont": 1}"#, "unknown_field", "`cuont`"),
        (r#"{"count": 1, "count": 2}"#, "malformed_body", "`count`"),
        (r#"{"ttl_ms": 0}"#, "invalid_value", "`ttl_ms`"),
        (r#"{"ttl_ms": 1.5}"#, "invalid_value", "`ttl_ms`"),
        (r#"{"metadata": []}"#, "invalid_value", "`metadata`"),
        (r#"{"template": 1}"#, "invalid_value", "`template`"),
        (r#"{"env": {"A B": "x"}}"#, "invalid_value", "A B"),
        (r#"{"env": {"A": 1}}"#, "invalid_value", "`env.A`"),
        (r#"{"ticket": "a"}"#, "invalid_value", "`ticket`"),
        (r#"{"keep_vm": true}"#, "invalid_value", "`keep_vm`"),
        (r#"{"ticket": "tkt_01jv0000000000000000000000", "keep_vm": 1}"#, "invalid_value", "`keep_vm`"),
        (r#"{"name": "Web"}"#, "invalid_value", "`name`: \"Web\""),
        (r#"{"name": "42"}"#, "invalid_value", "not digits only"),
        (r#"{"name": ""}"#, "invalid_value", "`name`"),
        (r#"{"name": "server"}"#, "invalid_value", "`server`"),
        (r#"{"name": "vm-01jv0000000000000000000000"}"#, "invalid_value", "host name"),
        (r#"{"name": "web", "count": 2}"#, "invalid_value", "boot one VM for each name"),
        (r#"{"ticket": "tkt_01jv0000000000000000000000", "count": 2}"#, "invalid_value", "`count` is 2"),
        (
            r#"{"ticket": "tkt_01jv0000000000000000000000", "env": {"SKEP_TICKET_ID": "x"}}"#,
            "invalid_value",
            "SKEP_TICKET_ID",
        ),
        (
            r#"{"ticket": "tkt_01jv0000000000000000000000", "env": {"SKEP_URL": "http://x"}}"#,
            "invalid_value",
            "SKEP_URL",
        ),
    ] {
        let found = refused(skep.post("/api/swarm/boot", body).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, code), "{body}: {}", found.message);
        assert!(found.message.contains(name), "{body}: {}", found.message);
    }
    let found = refused(skep.post("/api/swarm/boot", r#"{"template": "../etc"}"#).await).await;
    assert_eq!((found.status, found.code.as_str()), (404, "unknown_template"));
}

#[tokio::test]
async fn a_boot_for_a_ticket_needs_to_claim_it_and_claims_nothing_where_there_are_no_vms() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let boot = async |key: &str| {
        let request = skep.bare(Method::POST, "/api/swarm/boot").bearer_auth(key);
        refused(request.json(&serde_json::json!({"ticket": id})).send().await.unwrap()).await
    };
    let (key, _) = skep.key(&[Scope::SwarmWrite]).await;
    let found = boot(&key).await;
    assert_eq!((found.status, found.code.as_str()), (403, "scope_missing"));
    assert!(found.message.contains("tickets:write"), "{}", found.message);
    let (key, _) = skep.key(&[Scope::SwarmWrite, Scope::TicketsWrite]).await;
    let found = boot(&key).await;
    assert_eq!((found.status, found.code.as_str()), VALID);
    assert_eq!(skep.record(&id).await["attempt"], 0);
}

#[tokio::test]
async fn cleanup_takes_nothing() {
    let skep = Skep::start().await;
    for body in ["", "{}"] {
        let Refused { status, code, .. } = refused(skep.post("/api/swarm/cleanup", body).await).await;
        assert_eq!((status, code.as_str()), VALID, "{body:?}");
    }
    let found = refused(skep.post("/api/swarm/cleanup", r#"{"force": true}"#).await).await;
    assert_eq!((found.status, found.code.as_str()), (400, "unknown_field"));
    assert!(found.message.contains("`force`"));
}

#[tokio::test]
async fn exec_needs_a_command_that_can_be() {
    let skep = Skep::start().await;
    for (path, body, status, code, name) in [
        ("/api/exec", r#"{"vm": 7}"#, 400, "missing_parameter", "`command`"),
        ("/api/exec", r#"{"vm": "a_b", "command": "id"}"#, 404, "unknown_vm", "`a_b`"),
        ("/api/exec", r#"{"vm": 1.5, "command": "id"}"#, 400, "invalid_value", "`vm`"),
        ("/api/exec", r#"{"vm": 7, "command": "id", "cwd": ""}"#, 400, "invalid_value", "relative to /root"),
        ("/api/exec", r#"{"vm": 7, "command": "id", "cwd": "a\u0000"}"#, 400, "invalid_value", "`cwd`"),
        ("/api/exec", r#"{"vm": 7, "command": "id", "cwd": "tmp"}"#, 503, "swarm_unavailable", ""),
        ("/api/exec", r#"{"vm": 7, "command": "a\u0000b"}"#, 400, "invalid_value", "`command`"),
        ("/api/exec", r#"{"vm": 7, "command": "id", "timeout": 0}"#, 400, "invalid_value", "`timeout`"),
        ("/api/exec", r#"{"vm": 7, "command": "id", "timeout": 3600001}"#, 400, "invalid_value", "3600000"),
        ("/api/exec", r#"{"vm": 7, "command": "id", "env": {"1": ""}}"#, 400, "invalid_value", "`env`"),
        ("/api/swarm/vm/7/exec", r#"{"vm": 7, "command": "id"}"#, 400, "unknown_field", "`vm`"),
        ("/api/swarm/vm/7/exec", r#"{"command": "id", "timeout": 1}"#, 503, "swarm_unavailable", ""),
        ("/api/exec", r#"{"vm": 7, "command": "id", "stream": true}"#, 503, "swarm_unavailable", ""),
    ] {
        let found = refused(skep.post(path, body).await).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{body}: {}", found.message);
        assert!(found.message.contains(name), "{body}: {}", found.message);
    }
}
