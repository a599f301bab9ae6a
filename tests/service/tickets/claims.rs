//! Concurrent claims: each ticket has exactly one winner.

use std::{collections::BTreeSet, sync::Arc};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{sync::Barrier, task::JoinSet};

use super::done;
use crate::harness::{Skep, eventually};

const CLIENTS: usize = 64;

/// How often a race is run: a few times, or `SKEP_TICKET_ROUNDS` times.
pub(super) fn rounds(usual: usize) -> usize {
    std::env::var("SKEP_TICKET_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Sends the changes of all clients at once. Returns the answers with their status.
async fn race(skep: &Arc<Skep>, id: &str, body: impl Fn(usize) -> Value) -> Vec<(u16, Value)> {
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (skep, barrier, body) = (Arc::clone(skep), Arc::clone(&barrier), body(client));
        let path = format!("/api/tickets/{id}");
        clients.spawn(async move {
            barrier.wait().await;
            let answer = skep.call(Method::PATCH, &path, &body).send().await.unwrap();
            (answer.status().as_u16(), answer.json().await.unwrap())
        });
    }
    clients.join_all().await
}

fn winners(answers: &[(u16, Value)]) -> Vec<&Value> {
    assert!(answers.iter().all(|(status, _)| [200, 409].contains(status)), "{answers:?}");
    answers.iter().filter(|(status, _)| *status == 200).map(|(_, answer)| answer).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_assignees_wins() {
    let skep = Arc::new(Skep::start().await);
    for _ in 0..rounds(5) {
        let id = skep.simple("wanted").await;
        let answers = race(&skep, &id, |client| json!({"assignee": format!("agent-{client}")})).await;
        let won = winners(&answers);
        assert_eq!(won.len(), 1);
        assert_eq!(won[0]["assignee"], skep.record(&id).await["assignee"]);
        let holder = won[0]["assignee"].as_str().unwrap();
        for (_, refusal) in answers.iter().filter(|(status, _)| *status == 409) {
            let message = refusal["message"].as_str().unwrap();
            assert!(message.contains(holder) && message.contains("attempt 1"), "{message}");
        }
        assert_eq!(skep.events(&id).await, ["created", "ready", "claimed"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_assignee_wins_one_attempt() {
    let skep = Arc::new(Skep::start().await);
    for _ in 0..rounds(3) {
        let id = skep.simple("wanted").await;
        let answers = race(&skep, &id, |_| json!({"status": "in_progress", "assignee": "agent-7"})).await;
        let won = winners(&answers);
        assert_eq!(won.len(), CLIENTS);
        assert!(won.iter().all(|one| (&one["attempt"], &one["version"]) == (&json!(1), &json!(2))));
        assert_eq!(skep.events(&id).await, ["created", "ready", "claimed"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_behind_one_key_never_both_win() {
    let skep = Arc::new(Skep::start().await);
    for _ in 0..rounds(3) {
        let id = skep.simple("wanted").await;
        let answers = race(&skep, &id, |_| json!({"status": "in_progress"})).await;
        assert_eq!(winners(&answers).len(), 1);
        let key = skep.read("/api/whoami").await["key"]["name"].clone();
        assert_eq!(skep.record(&id).await["assignee"], key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_drain_a_thousand_tickets_and_each_is_done_once() {
    const TICKETS: usize = 1_000;
    let skep = Arc::new(Skep::start().await);
    let tickets: Vec<_> = (0..TICKETS).map(|number| json!({"title": format!("{number}")})).collect();
    done(skep.call(Method::POST, "/api/tickets/batch", &json!({"tickets": tickets})), 201).await;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let skep = Arc::clone(&skep);
        clients.spawn(async move {
            let mut finished = Vec::new();
            loop {
                let order = json!({"assignee": format!("agent-{client}"), "count": 1 + client % 3});
                let claimed = done(skep.call(Method::POST, "/api/tickets/claim", &order), 200).await;
                let claimed = claimed["tickets"].as_array().unwrap().clone();
                if claimed.is_empty() {
                    return finished;
                }
                for ticket in claimed {
                    let id = ticket["id"].as_str().unwrap().to_owned();
                    let end = json!({"status": "completed", "attempt": ticket["attempt"], "result": {"by": client}});
                    skep.changed(&id, end).await;
                    finished.push(id);
                }
            }
        });
    }
    let finished: Vec<String> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!((finished.len(), finished.iter().collect::<BTreeSet<_>>().len()), (TICKETS, TICKETS));
    let events = skep.store.events_after(0, 100_000).await.unwrap();
    let count = |kind: &str| events.iter().filter(|event| event.kind.as_str() == kind).count();
    // The number of successful claims equals the number of claim events.
    assert_eq!((count("ticket.claimed"), count("ticket.completed")), (TICKETS, TICKETS));
}

#[tokio::test]
async fn claims_go_by_priority_and_then_by_age() {
    let skep = Skep::start().await;
    let mut expected = Vec::new();
    for priority in ["low", "critical", "medium", "high", "critical", "low"] {
        expected.push((priority, skep.ticket(json!({"title": priority, "priority": priority})).await));
    }
    let rank = |priority: &str| ["critical", "high", "medium", "low"].iter().position(|one| *one == priority);
    expected.sort_by_key(|(priority, id)| (rank(priority), id.clone()));
    let order = json!({"assignee": "a", "count": 4});
    let first = done(skep.call(Method::POST, "/api/tickets/claim", &order), 200).await;
    let order = json!({"assignee": "a", "count": 100, "priority": ["low", "critical"]});
    let second = done(skep.call(Method::POST, "/api/tickets/claim", &order), 200).await;
    let both = first["tickets"].as_array().unwrap().iter().chain(second["tickets"].as_array().unwrap());
    let claimed: Vec<_> = both.map(|ticket| ticket["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(claimed, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_claim_that_waits_is_woken_by_work() {
    let skep = Arc::new(Skep::start().await);
    let waiting = {
        let skep = Arc::clone(&skep);
        tokio::spawn(async move {
            // Longer than any test may take, so that only a signal can answer it.
            let order = json!({"assignee": "a", "wait_ms": 60_000, "priority": "high"});
            done(skep.call(Method::POST, "/api/tickets/claim", &order), 200).await
        })
    };
    let first = skep.simple("before").await;
    skep.ticket(json!({"title": "not for it"})).await;
    let id = skep.ticket(json!({"title": "for it", "priority": "high", "dependencies": [first]})).await;
    assert!(!waiting.is_finished());
    skep.changed(&first, json!({"status": "completed"})).await;
    let claimed = tokio::time::timeout(std::time::Duration::from_secs(40), waiting).await.unwrap().unwrap();
    assert_eq!((claimed["tickets"].as_array().unwrap().len(), &claimed["tickets"][0]["id"]), (1, &json!(id)));
}

#[tokio::test]
async fn a_stopping_server_answers_waiting_claims() {
    let mut skep = Skep::start().await;
    let order = json!({"assignee": "a", "wait_ms": 60_000});
    let waiting = tokio::spawn(skep.call(Method::POST, "/api/tickets/claim", &order).send());
    // Waits until the metrics show the request in progress.
    eventually("a claim that waits", async || {
        let metrics = skep.get("/metrics").await.text().await.unwrap();
        metrics.lines().any(|line| line.contains("in_flight") && line.ends_with(" 2"))
    })
    .await;
    skep.stop();
    let answer: Value = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer, json!({"tickets": []}));
}
