//! Repeated requests with an idempotency key.

use std::{collections::BTreeSet, sync::Arc};

use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Skep, refused};

async fn send(skep: &Skep, path: &str, key: &str, body: &Value) -> Response {
    skep.call(Method::POST, path, body).header("idempotency-key", key).send().await.unwrap()
}

#[tokio::test]
async fn the_same_request_has_its_effect_once() {
    let skep = Skep::start().await;
    for (path, body, status) in [
        ("/api/tickets", json!({"title": "a"}), 201),
        ("/api/tickets/batch", json!({"tickets": [{"ref": "a", "title": "a"}, {"title": "b"}]}), 201),
        ("/api/tickets/claim", json!({"assignee": "x"}), 200),
    ] {
        let first = send(&skep, path, "k 1", &body).await;
        assert_eq!((first.status().as_u16(), first.headers().get("idempotent-replayed")), (status, None));
        let again = send(&skep, path, "k 1", &body).await;
        assert_eq!(
            (again.status().as_u16(), again.headers()["idempotent-replayed"].to_str().unwrap()),
            (status, "true")
        );
        let (first, again): (Value, Value) = (first.json().await.unwrap(), again.json().await.unwrap());
        assert_eq!(first, again, "{path}");
        let mut other = body.clone();
        other["not_before"] = json!("2999-01-01T00:00:00Z");
        if path == "/api/tickets" {
            let found = refused(send(&skep, path, "k 1", &other).await).await;
            assert_eq!((found.status, found.code.as_str()), (422, "idempotency_mismatch"));
            assert!(found.message.contains("k 1"), "{}", found.message);
        }
        let next: Value = send(&skep, path, "k 2", &body).await.json().await.unwrap();
        assert_ne!(next, first, "another name is another request");
    }
    // Without the repetitions: two calls that create one ticket each, and two that create two each.
    assert_eq!(skep.read("/api/tickets").await["tickets"].as_array().unwrap().len(), 6);
    assert_eq!(skep.read("/api/tickets?status=in_progress").await["tickets"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_at_once_make_one_ticket() {
    let skep = Arc::new(Skep::start().await);
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let skep = Arc::clone(&skep);
        clients.spawn(async move {
            let answer = send(&skep, "/api/tickets", "same", &json!({"title": "a"})).await;
            match answer.status().as_u16() {
                201 => Some(answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()),
                _ => {
                    assert_eq!(refused(answer).await.code, "idempotency_in_progress");
                    None
                }
            }
        });
    }
    let made: BTreeSet<String> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!(made.len(), 1);
    assert_eq!(skep.read("/api/tickets").await["tickets"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_body_of_twenty_at_once_has_its_effect() {
    let skep = Arc::new(Skep::start().await);
    for round in 0..super::claims::rounds(10) {
        let name = format!("round {round}");
        let mut clients = JoinSet::new();
        for client in 0..20 {
            let (skep, name) = (Arc::clone(&skep), name.clone());
            clients.spawn(async move {
                let title = format!("{name}, body {}", client % 4);
                let answer = send(&skep, "/api/tickets", &name, &json!({"title": title})).await;
                if answer.status() == 201 {
                    let made: Value = answer.json().await.unwrap();
                    assert_eq!(made["title"], title, "answered for another body");
                    return Some(made["id"].as_str().unwrap().to_owned());
                }
                let found = refused(answer).await;
                let known = [(409, "idempotency_in_progress"), (422, "idempotency_mismatch")];
                assert!(
                    known.contains(&(found.status, found.code.as_str())),
                    "{} {}",
                    found.status,
                    found.code
                );
                None
            });
        }
        let made: BTreeSet<String> = clients.join_all().await.into_iter().flatten().collect();
        assert_eq!(made.len(), 1, "{made:?}");
        let found = skep.read("/api/tickets?limit=1000").await["tickets"].as_array().unwrap().len();
        assert_eq!(found, round + 1);
    }
}

#[tokio::test]
async fn refused_requests_and_empty_claims_are_not_stored() {
    let skep = Skep::start().await;
    let empty: Value = send(&skep, "/api/tickets/claim", "k", &json!({})).await.json().await.unwrap();
    assert_eq!(empty, json!({"tickets": []}));
    assert_eq!(send(&skep, "/api/tickets", "k", &json!({"title": ""})).await.status(), 400);
    assert_eq!(send(&skep, "/api/tickets", "k", &json!({"title": "a"})).await.status(), 201);
    let found: Value = send(&skep, "/api/tickets/claim", "k", &json!({})).await.json().await.unwrap();
    assert_eq!(found["tickets"].as_array().unwrap().len(), 1);
    let other = skep.other_account("acme").await;
    let key = skep.key_of(&other, &[skep_api::Scope::TicketsWrite]).await;
    let request = skep.bare(Method::POST, "/api/tickets").bearer_auth(key).header("idempotency-key", "k");
    let answer = request.json(&json!({"title": "another"})).send().await.unwrap();
    assert_eq!(answer.status(), 201, "a name is one of its account");
    for wrong in ["", &"x".repeat(256)] {
        let found = refused(send(&skep, "/api/tickets", wrong, &json!({"title": "a"})).await).await;
        assert_eq!(found.code, "malformed_request");
    }
}
