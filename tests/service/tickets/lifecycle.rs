//! The life of a ticket, from its creation to its end.

use reqwest::Method;
use serde_json::json;

use super::done;
use crate::harness::{Refused, Skep, refused};

const INVALID: (u16, &str) = (400, "invalid_value");
const TOO_LARGE: (u16, &str) = (413, "field_too_large");

#[tokio::test]
async fn a_ticket_is_made_claimed_completed_and_listed() {
    let skep = Skep::start().await;
    let made = done(skep.call(Method::POST, "/api/tickets", &json!({"title": "Port it"})), 201).await;
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("tkt_") && id.len() == 30, "{id}");
    for (field, value) in [
        ("status", json!("pending")),
        ("priority", json!("medium")),
        ("dependencies", json!([])),
        ("ready", json!(true)),
        ("blocked_by", json!([])),
        ("attempt", json!(0)),
        ("max_attempts", json!(5)),
        ("max_runtime_ms", json!(86_400_000)),
        ("version", json!(1)),
        ("description", json!(null)),
        ("assignee", json!(null)),
        ("result", json!(null)),
        ("metadata", json!(null)),
        ("lease_expires_at", json!(null)),
        ("not_before", json!(null)),
        ("started_at", json!(null)),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    let claimed = skep.changed(id, json!({"status": "in_progress", "assignee": "agent-7"})).await;
    assert_eq!((&claimed["status"], &claimed["assignee"]), (&json!("in_progress"), &json!("agent-7")));
    assert_eq!(
        (&claimed["attempt"], &claimed["version"], &claimed["ready"]),
        (&json!(1), &json!(2), &json!(false))
    );
    let result = json!({"files": 12, "deep": {"list": [1, null, "süß"]}});
    let completed = skep.changed(id, json!({"status": "completed", "attempt": 1, "result": result})).await;
    assert_eq!((&completed["status"], &completed["result"]), (&json!("completed"), &result));
    assert_eq!(skep.record(id).await, completed);
    let list = skep.read("/api/tickets?status=completed").await;
    assert_eq!((&list["tickets"], &list["next_cursor"]), (&json!([completed]), &json!(null)));
    assert_eq!(skep.events(id).await, ["created", "ready", "claimed", "completed"]);
}

#[tokio::test]
async fn events_tell_each_change_and_make_the_record_again() {
    let skep = Skep::start().await;
    let first = skep.simple("first").await;
    let id = skep.ticket(json!({"title": "a", "metadata": {"a": 1}, "dependencies": [first]})).await;
    skep.changed(&first, json!({"status": "completed"})).await;
    skep.changed(&id, json!({"title": "b", "priority": "high", "metadata": null})).await;
    skep.changed(&id, json!({"assignee": "agent-1"})).await;
    skep.changed(&id, json!({"status": "pending", "attempt": 1})).await;
    skep.changed(&id, json!({"assignee": "agent-2"})).await;
    skep.changed(&id, json!({"status": "failed", "result": {"why": "no"}})).await;
    skep.changed(&id, json!({"status": "pending"})).await;
    let last = skep.changed(&id, json!({"status": "completed", "assignee": "agent-3"})).await;
    let expected = [
        "created",
        "ready",
        "updated",
        "claimed",
        "released",
        "ready",
        "claimed",
        "failed",
        "reopened",
        "ready",
        "claimed",
        "completed",
    ];
    assert_eq!(skep.events(&id).await, expected);
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    let mut replayed = history["events"][0]["ticket"].clone();
    for event in history["events"].as_array().unwrap() {
        for (field, change) in event["changes"].as_object().unwrap() {
            assert_eq!(replayed[field], change[0], "{event}");
            replayed[field] = change[1].clone();
        }
        replayed["updated_at"] = event["at"].clone();
        assert_eq!(event["actor"]["key"].as_str().unwrap().len(), 30);
    }
    // Derived fields and the changes of heartbeats are in no event.
    for field in ["ready", "blocked_by"] {
        replayed[field] = last[field].clone();
    }
    assert_eq!(replayed, last);
    let attempts: Vec<_> =
        history["attempts"].as_array().unwrap().iter().map(|one| one["outcome"].clone()).collect();
    assert_eq!(attempts, ["released", "failed", "completed"]);
    assert_eq!(history["attempts"][1]["result"], json!({"why": "no"}), "the old result stays");
}

#[tokio::test]
async fn an_event_names_the_key_of_its_request_and_the_holder_of_the_attempt() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"assignee": "agent-1"})).await;
    skep.changed(&id, json!({"status": "pending", "attempt": 1})).await;
    let key = skep.read("/api/whoami").await["key"]["id"].clone();
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    let found: Vec<_> =
        history["events"].as_array().unwrap().iter().map(|event| (&event["type"], &event["actor"])).collect();
    for (place, (kind, assignee)) in [
        ("ticket.created", json!(null)),
        ("ticket.ready", json!(null)),
        ("ticket.claimed", json!("agent-1")),
        ("ticket.released", json!("agent-1")),
        ("ticket.ready", json!(null)),
    ]
    .into_iter()
    .enumerate()
    {
        let actor = json!({"key": key, "assignee": assignee, "vm": null});
        assert_eq!(found[place], (&json!(kind), &actor), "{place}");
    }
}

#[tokio::test]
async fn a_history_is_read_page_by_page_and_outlives_its_ticket() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    for number in 0..5 {
        skep.changed(&id, json!({"title": format!("{number}")})).await;
    }
    done(skep.request(Method::DELETE, &format!("/api/tickets/{id}")), 200).await;
    let (mut cursor, mut types) = (String::new(), Vec::new());
    loop {
        let page = skep.read(&format!("/api/tickets/{id}/history?limit=3{cursor}")).await;
        types.extend(
            page["events"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(types.len(), 8);
    assert_eq!(types.last().unwrap(), "ticket.deleted");
    let gone = refused(skep.get(&format!("/api/tickets/{id}")).await).await;
    assert_eq!((gone.status, gone.code.as_str()), (404, "unknown_ticket"));
}

#[tokio::test]
async fn what_is_too_large_or_wrong_is_refused_by_name() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let many: Vec<_> = (0..1_001).map(|_| skep_api::TicketId::generate().to_string()).collect();
    for (body, status, code, word) in [
        (json!({}), 400, "missing_parameter", "title"),
        (json!({"title": ""}), 400, "invalid_value", "title"),
        (json!({"title": "é".repeat(501)}), 400, "invalid_value", "501"),
        (json!({"title": "a", "titel": "b"}), 400, "unknown_field", "titel"),
        (json!({"title": "a", "priority": "urgent"}), 400, "invalid_value", "priority"),
        (json!({"title": "a", "description": "x".repeat(65_537)}), 413, "field_too_large", "65536"),
        (json!({"title": "a", "metadata": {"x": "x".repeat(65_536)}}), 413, "field_too_large", "metadata"),
        (json!({"title": "a", "dependencies": many}), 400, "invalid_value", "1001"),
        (json!({"title": "a", "dependencies": ["x"]}), 400, "invalid_value", "dependencies"),
        (json!({"title": "a", "max_attempts": 0}), 400, "invalid_value", "max_attempts"),
        (json!({"title": "a", "max_runtime_ms": 4_999}), 400, "invalid_value", "max_runtime_ms"),
        (json!({"title": "a", "not_before": "soon"}), 400, "invalid_value", "not_before"),
    ] {
        let answer = skep.call(Method::POST, "/api/tickets", &body).send().await.unwrap();
        let found = refused(answer).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{}", found.message);
        assert!(found.message.contains(word), "{}", found.message);
    }
    for (body, status, code) in [
        (json!({"status": "completed", "result": {"x": "x".repeat(1 << 20)}}), 413, "field_too_large"),
        (json!({"status": "completed", "result": "x"}), 400, "invalid_value"),
        (json!({"assignee": "a", "lease_ms": 4_999}), 400, "invalid_value"),
        (json!({"status": "in_progress", "assignee": null}), 400, "invalid_value"),
        (json!({"assignee": "x".repeat(201)}), 400, "invalid_value"),
        (json!({"lease_ms": 5_000}), 400, "invalid_value"),
        (json!({"attempt": 1}), 400, "invalid_value"),
        (json!({"status": "in_progress", "result": {}}), 400, "invalid_value"),
        (json!({"assignee": "a", "dependencies": []}), 400, "invalid_value"),
    ] {
        let found = refused(skep.patch(&id, body.clone()).await).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{body}: {}", found.message);
    }
    let whole = "é".repeat(500);
    assert_eq!(skep.changed(&id, json!({"title": whole})).await["title"], whole.as_str());
    let result = json!({"x": "x".repeat((1 << 20) - 8)});
    assert_eq!(skep.changed(&id, json!({"status": "completed", "result": result})).await["result"], result);
}

#[tokio::test]
async fn what_is_out_of_its_bounds_is_refused_by_name() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let (all, claim) = ("/api/tickets", "/api/tickets/claim");
    let (one, beat) = (format!("/api/tickets/{id}"), format!("/api/tickets/{id}/heartbeat"));
    let (one, beat) = (one.as_str(), beat.as_str());
    let too_long = 2_592_000_001_u64;
    for (method, path, body, (status, code), field) in [
        (Method::POST, all, json!({"title": "a", "max_attempts": 1_001}), INVALID, "max_attempts"),
        (Method::POST, all, json!({"title": "a", "max_runtime_ms": too_long}), INVALID, "max_runtime_ms"),
        (Method::PATCH, one, json!({"title": "é".repeat(501)}), INVALID, "title"),
        (Method::PATCH, one, json!({"description": "x".repeat(65_537)}), TOO_LARGE, "description"),
        (Method::PATCH, one, json!({"metadata": {"x": "x".repeat(65_536)}}), TOO_LARGE, "metadata"),
        (Method::PATCH, one, json!({"max_runtime_ms": too_long}), INVALID, "max_runtime_ms"),
        (Method::PATCH, one, json!({"assignee": "a", "lease_ms": 86_400_001}), INVALID, "lease_ms"),
        (Method::PATCH, one, json!({"retry_after_ms": too_long}), INVALID, "retry_after_ms"),
        (Method::POST, claim, json!({"count": 0}), INVALID, "count"),
        (Method::POST, claim, json!({"count": 101}), INVALID, "count"),
        (Method::POST, claim, json!({"wait_ms": 60_001}), INVALID, "wait_ms"),
        (Method::POST, claim, json!({"lease_ms": 4_999}), INVALID, "lease_ms"),
        (Method::POST, claim, json!({"lease_ms": 86_400_001}), INVALID, "lease_ms"),
        (Method::POST, beat, json!({"lease_ms": 4_999}), INVALID, "lease_ms"),
        (Method::POST, beat, json!({"lease_ms": 86_400_001}), INVALID, "lease_ms"),
    ] {
        let found = refused(skep.call(method, path, &body).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{path} {field}: {}", found.message);
        assert!(found.message.contains(&format!("`{field}`")), "{path}: {}", found.message);
    }
    // The control: the maximum values are accepted.
    skep.changed(&id, json!({"max_runtime_ms": too_long - 1})).await;
    skep.changed(&id, json!({"assignee": "a", "lease_ms": 86_400_000})).await;
    done(skep.call(Method::POST, beat, &json!({"lease_ms": 86_400_000})), 200).await;
}

#[tokio::test]
async fn null_in_a_field_that_cannot_be_removed_is_refused_by_name() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    for field in [
        "title",
        "priority",
        "labels",
        "dependencies",
        "max_attempts",
        "max_runtime_ms",
        "status",
        "attempt",
        "lease_ms",
        "retry_after_ms",
    ] {
        let found = refused(skep.patch(&id, json!({field: null})).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, "invalid_value"), "{}", found.message);
        assert_eq!(found.message, format!("`{field}` is null; send a value, or leave it out"));
    }
}

#[tokio::test]
async fn if_match_holds_a_change_to_what_was_read() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let path = format!("/api/tickets/{id}");
    let read = skep.get(&path).await;
    let tag = read.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(tag, "\"1\"");
    let with = |tag: &str, body| skep.call(Method::PATCH, &path, &body).header("if-match", tag);
    let answer = with(&tag, json!({"title": "b"})).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["etag"].to_str().unwrap()), (200, "\"2\""));
    for stale in [tag.as_str(), "W/\"2\"", "\"x\""] {
        let Refused { status, code, message } =
            refused(with(stale, json!({"title": "c"})).send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (412, "version_stale"));
        assert!(message.contains("version 2"), "{message}");
        let deletion = skep.request(Method::DELETE, &path).header("if-match", stale).send().await.unwrap();
        assert_eq!(deletion.status(), 412);
    }
    done(with("\"7\", \"2\"", json!({"title": "c"})), 200).await;
    done(with("*", json!({"title": "d"})), 200).await;
    assert_eq!(refused(with("2", json!({})).send().await.unwrap()).await.code, "malformed_request");
    done(skep.request(Method::DELETE, &path).header("if-match", "\"4\""), 200).await;
}

#[tokio::test]
async fn why_lists_the_reasons_why_a_ticket_is_not_ready() {
    let skep = Skep::start().await;
    let first = skep.simple("first").await;
    let id = skep
        .ticket(json!({"title": "a", "dependencies": [first], "not_before": "2999-01-01T00:00:00Z"}))
        .await;
    let why = async || skep.read(&format!("/api/tickets/{id}/why")).await;
    let codes = |why: &serde_json::Value| -> Vec<String> {
        let reasons = why["reasons"].as_array().unwrap().iter();
        reasons.map(|reason| reason["code"].as_str().unwrap().to_owned()).collect()
    };
    let found = why().await;
    assert_eq!(codes(&found), ["blocked", "waiting"]);
    assert_eq!(found["reasons"][0]["tickets"], json!([{"id": first, "status": "pending"}]));
    assert_eq!(found["reasons"][0]["message"], "blocked by 1 unfinished ticket");
    assert_eq!(found["reasons"][1]["until"], "2999-01-01T00:00:00.000Z");
    skep.changed(&first, json!({"status": "failed"})).await;
    assert_eq!(codes(&why().await), ["blocked_by_failure", "waiting"]);
    skep.changed(&first, json!({"status": "pending"})).await;
    skep.changed(&first, json!({"status": "completed"})).await;
    skep.changed(&id, json!({"not_before": null})).await;
    let found = why().await;
    assert_eq!((codes(&found), &found["ready"]), (vec![], &json!(true)));
    skep.changed(&id, json!({"assignee": "agent-7"})).await;
    let found = why().await;
    assert_eq!(codes(&found), ["held"]);
    assert!(found["reasons"][0]["who"].as_str().unwrap().contains("agent-7"), "{found}");
}
