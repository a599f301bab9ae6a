//! Templates as records: lists, reads, refusals and deletions. `tests/binary/templates.rs` builds some.

use jiff::Timestamp;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use skep_api::{
    AccountId, TemplateId,
    events::TemplateEvent,
    templates::{GuestSize, Template, TemplateSource},
};
use skep_store::{CreateTemplate, EnsureBaseTemplate, RecordTemplateState, TemplateStatus, VmBooted};

use crate::harness::{self, Skep, refused};

const SIZE: GuestSize = GuestSize { memory_mb: 1024, vcpus: 2, disk_mb: 10_240 };

/// A server that has built `base`.
async fn with_base() -> Skep {
    let skep = Skep::start().await;
    skep.store.ensure_base_template(EnsureBaseTemplate { size: SIZE, at: Timestamp::now() }).await.unwrap();
    record(&skep, TemplateId::BASE, ready()).await;
    skep
}

async fn made(skep: &Skep, account: AccountId, name: &str, parent: TemplateId) -> Template {
    let command = CreateTemplate {
        source: TemplateSource::Setup,
        id: TemplateId::generate(),
        account,
        name: name.parse().unwrap(),
        parent,
        size: SIZE,
        egress: None,
        description: None,
        max_templates: 100,
        max_building: 100,
        at: Timestamp::now(),
        request_id: None,
        once: None,
    };
    skep.store.create_template(command).await.unwrap()
}

async fn record(skep: &Skep, template: TemplateId, status: TemplateStatus) {
    let at = Timestamp::now();
    skep.store.record_template_state(RecordTemplateState { template, status, at }).await.unwrap();
}

fn ready() -> TemplateStatus {
    TemplateStatus::Ready { key: "key".to_owned(), size_bytes: 700, own_bytes: 100 }
}

async fn read(skep: &Skep, path: &str) -> Value {
    skep.read(path).await
}

/// The message of a refusal with this status and code.
async fn refusal(answer: Response, status: u16, code: &str) -> String {
    let refused = refused(answer).await;
    assert_eq!((refused.status, refused.code.as_str()), (status, code), "{}", refused.message);
    refused.message
}

async fn delete(skep: &Skep, reference: &str) -> Response {
    skep.request(Method::DELETE, &format!("/api/templates/{reference}")).send().await.unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list["templates"].as_array().unwrap().iter().map(|template| template["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_account_sees_its_own_templates_and_base() {
    let skep = with_base().await;
    let other = skep.other_account("other").await;
    let big = made(&skep, skep.account.id, "big", TemplateId::BASE).await;
    let theirs = made(&skep, other, "theirs", TemplateId::BASE).await;
    let first = read(&skep, "/api/templates?limit=1").await;
    assert_eq!(names(&first), ["base"]);
    let rest = format!("/api/templates?cursor={}", first["next_cursor"].as_str().unwrap());
    let rest = read(&skep, &rest).await;
    assert_eq!((names(&rest), &rest["next_cursor"]), (vec!["big"], &Value::Null));
    let base = read(&skep, "/api/templates/base").await;
    for (field, value) in [
        ("id", json!("tpl_00000000000000000000000000")),
        ("source", json!("base")),
        ("state", json!("ready")),
        ("parent", Value::Null),
        ("account", Value::Null),
        ("public", json!(true)),
        ("memory_mb", json!(1024)),
        ("size_bytes", json!(700)),
        ("children", json!(1)),
        ("vms", json!(0)),
    ] {
        assert_eq!(base[field], value, "{field}");
    }
    let by_id = read(&skep, &format!("/api/templates/{}", big.id)).await;
    assert_eq!(by_id, read(&skep, "/api/templates/big").await);
    assert_eq!((&by_id["source"], &by_id["parent"]), (&json!("setup"), &json!("base")));
    // Templates of another account are unknown, in the words of what does not exist.
    for reference in
        ["theirs".to_owned(), theirs.id.to_string(), "nothing".to_owned(), "..%2Fbase".to_owned()]
    {
        let path = format!("/api/templates/{reference}");
        for answer in [skep.get(&path).await, delete(&skep, &reference).await] {
            let message = refusal(answer, 404, "unknown_template").await;
            assert!(message.contains("list the templates"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_template_that_is_needed_is_not_deleted() {
    let skep = with_base().await;
    let account = skep.account.id;
    let big = made(&skep, account, "big", TemplateId::BASE).await;
    made(&skep, account, "bigger", big.id).await;
    let vm = VmBooted { template: "big".to_owned(), template_id: big.id, ..harness::booted(account, 7) };
    skep.record_boots(vec![vm.clone()], Timestamp::now(), None).await;
    let seen = read(&skep, "/api/templates/big").await;
    assert_eq!((&seen["vms"], &seen["children"]), (&json!(1), &json!(1)));
    assert!(seen["last_used_at"].is_string());
    let message = refusal(delete(&skep, "big").await, 409, "template_in_use").await;
    assert!(message.contains(&vm.id.to_string()) && message.contains("`bigger`"), "{message}");
    let message = refusal(delete(&skep, "base").await, 409, "template_protected").await;
    assert!(message.contains("`base`"), "{message}");
    let deleted = delete(&skep, "bigger").await;
    assert_eq!(deleted.status(), 200);
    let deleted: Value = deleted.json().await.unwrap();
    assert_eq!((&deleted["name"], &deleted["deleted"]), (&json!("bigger"), &json!(true)));
    refusal(skep.get("/api/templates/bigger").await, 404, "unknown_template").await;
}

#[tokio::test]
async fn a_template_is_not_created_with_wrong_values_or_without_vms() {
    let skep = with_base().await;
    let create = async |body: Value| skep.post("/api/templates", &body.to_string()).await;
    let with = |field: &str, value: Value| {
        let mut body = json!({"name": "big", "from": "base"});
        body[field] = value;
        body
    };
    for (field, value, code, named) in [
        ("memory_mb", json!(0), "invalid_value", "`memory_mb` is 0; it must be a whole number from 128 to"),
        ("memory_mb", json!(127), "invalid_value", "is 127"),
        ("memory_mb", json!(1_000_000_000), "invalid_value", "is 1000000000"),
        ("memory_mb", json!("4G"), "invalid_value", "whole number"),
        ("memory_mb", Value::Null, "invalid_value", "null"),
        ("vcpus", json!(0), "invalid_value", "from 1 to"),
        ("vcpus", json!(1_000_000_000), "invalid_value", "(the processors of this server)"),
        ("disk_mb", json!(0), "invalid_value", "`disk_mb` is 0"),
        ("disk_mb", json!(1_000_000_000), "invalid_value", "to 1048576"),
        ("name", json!("Big"), "invalid_value", "cannot be a template's name"),
        ("description", json!("a\nb"), "invalid_value", "one line"),
        ("description", json!("x".repeat(501)), "invalid_value", "501"),
        ("image", json!("debian"), "unknown_field", "image"),
        ("archive", json!("/srv/x.tar"), "unknown_field", "archive"),
        ("setup", json!(["true"]), "unknown_field", "setup"),
        ("replace", json!(true), "unknown_field", "replace"),
    ] {
        let message = refusal(create(with(field, value)).await, 400, code).await;
        assert!(message.contains(named), "{field}: {message}");
    }
    let missing = refusal(create(json!({"name": "big"})).await, 400, "missing_parameter").await;
    assert!(missing.contains("from"), "{missing}");
    let message = refusal(create(with("memory_mb", json!(4096))).await, 503, "swarm_unavailable").await;
    assert!(message.contains("this server runs no VMs"), "{message}");
    assert_eq!(names(&read(&skep, "/api/templates").await), ["base"]);
}

#[tokio::test]
async fn changes_of_a_template_are_events_of_its_account() {
    let skep = with_base().await;
    let mut follower = skep.follow("?types=template.*").await;
    let big = made(&skep, skep.account.id, "big", TemplateId::BASE).await;
    record(&skep, big.id, TemplateStatus::Failed { reason: "no room".to_owned() }).await;
    assert_eq!(read(&skep, "/api/templates/big").await["error"], "no room");
    assert_eq!(delete(&skep, "big").await.status(), 200);
    let expected = [("building", None), ("failed", Some("no room")), ("deleted", None)];
    for (event, (kind, reason)) in follower.take(3).await.iter().zip(expected) {
        let event: TemplateEvent = serde_json::from_value(event.data.clone()).unwrap();
        assert_eq!(event.kind, format!("template.{kind}"));
        assert_eq!((event.template, event.name.as_str(), event.reason.as_deref()), (big.id, "big", reason));
    }
}
