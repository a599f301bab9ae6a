//! Dependencies between tickets.

use reqwest::Method;
use serde_json::{Value, json};

use super::done;
use crate::harness::{Refused, Skep, refused};

#[tokio::test]
async fn a_blocked_ticket_names_its_blockers_and_becomes_ready_once() {
    let skep = Skep::start().await;
    let (a, b) = (skep.simple("a").await, skep.simple("b").await);
    let c = skep.ticket(json!({"title": "c", "dependencies": [a, b, a]})).await;
    let record = skep.record(&c).await;
    assert_eq!(record["dependencies"], json!([a, b]), "each once, in order");
    let by = |a_status: &str| json!([{"id": a, "status": a_status}, {"id": b, "status": "pending"}]);
    assert_eq!((&record["ready"], &record["blocked_by"]), (&json!(false), &by("pending")));
    for body in [json!({"assignee": "x"}), json!({"status": "completed"})] {
        let message = skep.conflict(&c, body, "blocked").await;
        assert!(message.contains(&a) && message.contains(&b), "{message}");
    }
    skep.changed(&a, json!({"status": "failed"})).await;
    assert_eq!(skep.record(&c).await["blocked_by"], by("failed"));
    skep.changed(&a, json!({"status": "pending"})).await;
    skep.changed(&a, json!({"status": "completed"})).await;
    skep.changed(&b, json!({"status": "completed"})).await;
    let record = skep.record(&c).await;
    assert_eq!(
        (&record["ready"], &record["blocked_by"], &record["version"]),
        (&json!(true), &json!([]), &json!(1))
    );
    assert_eq!(skep.events(&c).await, ["created", "blocked", "ready"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_last_two_prerequisites_at_once_make_it_ready_once() {
    let skep = Skep::start().await;
    for _ in 0..super::claims::rounds(10) {
        let (a, b) = (skep.simple("a").await, skep.simple("b").await);
        let c = skep.ticket(json!({"title": "c", "dependencies": [a, b]})).await;
        let end = || json!({"status": "completed"});
        tokio::join!(skep.changed(&a, end()), skep.changed(&b, end()));
        assert_eq!(skep.events(&c).await, ["created", "ready"]);
        assert_eq!(skep.record(&c).await["ready"], true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_changes_at_once_make_no_cycle() {
    let skep = Skep::start().await;
    for _ in 0..super::claims::rounds(10) {
        let (a, b) = (skep.simple("a").await, skep.simple("b").await);
        let needs = |one: &str| json!({"dependencies": [one]});
        let (first, second) = tokio::join!(skep.patch(&a, needs(&b)), skep.patch(&b, needs(&a)));
        let (won, lost) = if first.status() == 200 { (first, second) } else { (second, first) };
        assert_eq!(won.status(), 200);
        let Refused { status, code, message } = refused(lost).await;
        assert_eq!((status, code.as_str()), (409, "cycle"));
        assert!(
            message.contains(&format!("{a} → {b} → {a}")) || message.contains(&format!("{b} → {a} → {b}"))
        );
    }
    let own = skep.simple("own").await;
    skep.conflict(&own, json!({"dependencies": [own]}), "cycle").await;
}

#[tokio::test]
async fn foreign_tickets_are_answered_like_unknown_ones() {
    let skep = Skep::start().await;
    let other = skep.other_account("acme").await;
    let key = skep.key_of(&other, &[skep_api::Scope::TicketsWrite]).await;
    let theirs: Value =
        done(skep.bare(Method::POST, "/api/tickets").bearer_auth(&key).json(&json!({"title": "x"})), 201)
            .await;
    let theirs = theirs["id"].as_str().unwrap().to_owned();
    let nobodys = skep_api::TicketId::generate().to_string();
    let mut messages = Vec::new();
    for id in [&theirs, &nobodys] {
        let body = json!({"title": "a", "dependencies": [id]});
        let found = refused(skep.call(Method::POST, "/api/tickets", &body).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (422, "unknown_dependency"));
        messages.push(found.message.replace(id.as_str(), "X"));
    }
    assert_eq!(messages[0], messages[1]);
    assert_eq!(skep.read("/api/tickets").await["tickets"], json!([]));
    let claimed = done(skep.call(Method::POST, "/api/tickets/claim", &json!({})), 200).await;
    assert_eq!(claimed["tickets"], json!([]));
}

#[tokio::test]
async fn a_graph_is_made_whole_or_not_at_all() {
    let skep = Skep::start().await;
    let known = skep.simple("known").await;
    let graph = json!({"tickets": [
        {"ref": "build", "title": "build", "dependencies": ["ref:plan", known]},
        {"ref": "plan", "title": "plan", "priority": "high"},
        {"title": "loose"}
    ]});
    let made = done(skep.call(Method::POST, "/api/tickets/batch", &graph), 201).await;
    let id = |place: usize| made["tickets"][place]["id"].clone();
    assert_eq!(made["refs"], json!({"build": id(0), "plan": id(1)}));
    assert_eq!(made["tickets"][0]["dependencies"], json!([id(1), known]));
    assert_eq!(made["tickets"][0]["blocked_by"].as_array().unwrap().len(), 2);
    let before = skep.read("/api/tickets").await["tickets"].as_array().unwrap().len();
    let nobodys = skep_api::TicketId::generate();
    for (wrong, status, code) in [
        (json!({"title": "x", "dependencies": ["ref:nobody"]}), 422, "unknown_dependency"),
        (json!({"title": "x", "dependencies": [nobodys]}), 422, "unknown_dependency"),
        (json!({"ref": "own", "title": "x", "dependencies": ["ref:own"]}), 409, "cycle"),
        (json!({"ref": "plan", "title": "x"}), 400, "invalid_value"),
    ] {
        let batch = json!({"tickets": [{"ref": "plan", "title": "plan"}, wrong]});
        let found =
            refused(skep.call(Method::POST, "/api/tickets/batch", &batch).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (status, code), "{}", found.message);
    }
    let many: Vec<_> = (0..1_001).map(|_| json!({"title": "x"})).collect();
    let found =
        skep.call(Method::POST, "/api/tickets/batch", &json!({"tickets": many})).send().await.unwrap();
    assert_eq!(found.status(), 400);
    assert_eq!(skep.read("/api/tickets").await["tickets"].as_array().unwrap().len(), before);
}

#[tokio::test]
async fn a_refusal_names_ten_tickets_and_counts_the_others() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let batch: Vec<_> = (0..12).map(|_| json!({"title": "b", "dependencies": [id]})).collect();
    let made = done(skep.call(Method::POST, "/api/tickets/batch", &json!({"tickets": batch})), 201).await;
    let dependents: Vec<&str> =
        made["tickets"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    let named = |message: &str| dependents.iter().filter(|id| message.contains(**id)).count();
    let deletion = skep.request(Method::DELETE, &format!("/api/tickets/{id}"));
    let Refused { status, code, message } = refused(deletion.send().await.unwrap()).await;
    assert_eq!((status, code.as_str(), named(&message)), (409, "has_dependents", 10), "{message}");
    assert!(message.contains("12 unfinished tickets") && message.contains("and 2 more"), "{message}");
    // A ticket that depends on all of them is refused with the same limit.
    let last = skep.ticket(json!({"title": "c", "dependencies": dependents})).await;
    let message = skep.conflict(&last, json!({"assignee": "x"}), "blocked").await;
    assert!(named(&message) == 10 && message.contains("and 2 more"), "{message}");
    let why = skep.read(&format!("/api/tickets/{last}/why")).await;
    assert_eq!(why["reasons"][0]["tickets"].as_array().unwrap().len(), 10, "{why}");
}

#[tokio::test]
async fn a_ticket_with_dependents_is_deleted_only_on_explicit_request() {
    let skep = Skep::start().await;
    let delete = async |id: &str, query: &str| {
        skep.request(Method::DELETE, &format!("/api/tickets/{id}{query}")).send().await.unwrap()
    };
    let a = skep.simple("a").await;
    let b = skep.ticket(json!({"title": "b", "dependencies": [a]})).await;
    let c = skep.ticket(json!({"title": "c", "dependencies": [b]})).await;
    let found = refused(delete(&a, "").await).await;
    assert_eq!((found.status, found.code.as_str()), (409, "has_dependents"));
    assert!(found.message.contains(&b), "{}", found.message);
    assert_eq!(delete(&a, "?dependents=detach").await.status(), 200);
    let record = skep.record(&b).await;
    assert_eq!(
        (&record["dependencies"], &record["ready"], &record["version"]),
        (&json!([]), &json!(true), &json!(2))
    );
    assert_eq!(skep.events(&b).await, ["created", "updated", "ready"]);
    skep.changed(&b, json!({"assignee": "x"})).await;
    assert_eq!(refused(delete(&b, "?dependents=delete").await).await.code, "ticket_state", "it is held");
    let answer = delete(&b, "?dependents=delete&force=true").await;
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({"id": b, "deleted": true}));
    assert_eq!(skep.get(&format!("/api/tickets/{c}")).await.status(), 404);
    assert_eq!(skep.events(&c).await, ["created", "deleted"]);
}
