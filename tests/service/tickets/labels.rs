//! Labels: setting and changing them, and claims by label.

use reqwest::Method;
use serde_json::{Value, json};

use super::done;
use crate::harness::{Skep, refused};

/// Claims the ready tickets with these labels, and returns their ids.
async fn claimed(skep: &Skep, body: Value) -> Vec<String> {
    let answer = done(skep.call(Method::POST, "/api/tickets/claim", &body), 200).await;
    let tickets = answer["tickets"].as_array().unwrap().iter();
    tickets.map(|ticket| ticket["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn two_plans_do_not_take_each_others_work() {
    let skep = Skep::start().await;
    let a = skep.ticket(json!({"title": "a", "labels": ["plan/a"]})).await;
    let b = skep
        .ticket(json!({"title": "b", "labels": ["plan/b", "gpu", "plan/b"], "priority": "critical"}))
        .await;
    let plain = skep.simple("plain").await;
    // A repeated label counts once.
    assert_eq!(skep.record(&b).await["labels"], json!(["plan/b", "gpu"]));
    assert_eq!(skep.record(&plain).await["labels"], json!([]));
    let nothing = claimed(&skep, json!({"labels": ["plan/a", "gpu"], "count": 9})).await;
    assert_eq!(nothing, Vec::<String>::new());
    assert_eq!(claimed(&skep, json!({"labels": ["plan/a"], "count": 9})).await, [a]);
    assert_eq!(claimed(&skep, json!({"labels": ["gpu", "plan/b"], "count": 9})).await, [b]);
    // The control: a claim without labels takes every ticket.
    assert_eq!(claimed(&skep, json!({"labels": [], "count": 9})).await, [plain]);
}

#[tokio::test]
async fn labels_change_at_any_time_and_events_show_it() {
    let skep = Skep::start().await;
    let id = skep.ticket(json!({"title": "a", "labels": ["one"]})).await;
    skep.changed(&id, json!({"status": "completed", "labels": ["two"]})).await;
    let after = skep.changed(&id, json!({"labels": ["three", "two"]})).await;
    assert_eq!((&after["labels"], &after["version"]), (&json!(["three", "two"]), &json!(3)));
    // Setting the same labels again changes nothing.
    assert_eq!(skep.changed(&id, json!({"labels": ["three", "two"]})).await["version"], 3);
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    let events = history["events"].as_array().unwrap();
    assert_eq!(events[0]["ticket"]["labels"], json!(["one"]));
    let changes: Vec<&Value> = events.iter().filter_map(|event| event["changes"].get("labels")).collect();
    assert_eq!(changes, [&json!([["one"], ["two"]]), &json!([["two"], ["three", "two"]])]);
    let listed = |label: &'static str| {
        let skep = &skep;
        async move { skep.read(&format!("/api/tickets?label={label}")).await["tickets"].as_array().unwrap().len() }
    };
    assert_eq!((listed("one").await, listed("three").await), (0, 1));
    skep.changed(&id, json!({"labels": []})).await;
    assert_eq!(listed("three").await, 0);
    // The control: other fields of a completed ticket do not change.
    let message = skep.conflict(&id, json!({"title": "b", "labels": []}), "ticket_state").await;
    assert!(message.contains("`labels`"), "{message}");
}

#[tokio::test]
async fn a_claim_that_waits_for_a_label_finds_a_ticket_that_gets_it() {
    let skep = Skep::start().await;
    let id = skep.ticket(json!({"title": "a", "labels": ["other"]})).await;
    let waits = json!({"labels": ["wanted"], "wait_ms": 60_000});
    let claim = claimed(&skep, waits);
    let label = async {
        // The claim must find the ticket whether it waits already or comes later.
        skep.changed(&id, json!({"labels": ["wanted"]})).await;
    };
    assert_eq!(tokio::join!(claim, label).0, [id]);
}

#[tokio::test]
async fn what_is_no_label_is_refused_everywhere() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let many: Vec<String> = (0..33).map(|number| format!("label-{number}")).collect();
    let repeated = vec!["same"; 40];
    skep.ticket(json!({"title": "a", "labels": repeated})).await;
    for (labels, message) in [
        (json!(["Plan"]), "`Plan` is not a label"),
        (json!([""]), "is not a label"),
        (json!(["a", "b,c"]), "`b,c` is not a label"),
        (json!(["x".repeat(64)]), "1 to 63 characters"),
        (json!("a"), "labels"),
        (json!([1]), "labels"),
        (json!(many), "has 33 entries"),
    ] {
        let calls = [
            (Method::POST, "/api/tickets".to_owned(), json!({"title": "a", "labels": labels})),
            (
                Method::POST,
                "/api/tickets/batch".to_owned(),
                json!({"tickets": [{"title": "a", "labels": labels}]}),
            ),
            (Method::POST, "/api/tickets/claim".to_owned(), json!({"labels": labels})),
            (Method::PATCH, format!("/api/tickets/{id}"), json!({"labels": labels})),
        ];
        for (method, path, body) in calls {
            let found = refused(skep.call(method, &path, &body).send().await.unwrap()).await;
            assert_eq!(found.status, 400, "{path} {body}: {}", found.message);
            assert!(found.message.contains(message), "{path} {body}: {}", found.message);
        }
    }
}
