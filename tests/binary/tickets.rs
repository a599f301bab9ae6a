//! A server that is killed at random times while agents work: every answer that an agent got still holds afterwards,
//! and every change has its event.

mod boots;
mod command;
mod follow;
mod plans;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{sync::Mutex, task::JoinSet};

use crate::{
    doctor::tamper,
    harness::{Skep, eventually, send, try_send},
};

/// Number of kills.
const ROUNDS: u64 = 6;
const AGENTS: usize = 12;
/// Histories that are read at the same time.
const AT_ONCE: usize = 8;
/// The latest moment of a kill, in milliseconds after the first answer.
const LATEST_MS: u64 = 400;

/// The latest state of each ticket in the answers to agents, by version.
#[derive(Debug, Default)]
struct LastAnswers {
    tickets: BTreeMap<String, (u64, Value)>,
    answers: usize,
}

impl LastAnswers {
    fn record(&mut self, ticket: &Value) {
        self.answers += 1;
        let version = ticket["version"].as_u64().unwrap();
        let known = self.tickets.entry(ticket["id"].as_str().unwrap().to_owned()).or_default();
        if version >= known.0 {
            *known = (version, ticket.clone());
        }
    }
}

/// Makes, claims and finishes tickets until the server is gone.
async fn work(skep: Arc<Skep>, agent: usize, last_answers: Arc<Mutex<LastAnswers>>) {
    let name = format!("agent-{agent}");
    for number in 0.. {
        let dependencies: Vec<Value> = {
            let last_answers = last_answers.lock().await;
            last_answers.tickets.keys().nth(number % 7).into_iter().map(|id| json!(id)).collect()
        };
        let body =
            json!({"title": format!("{name} {number}"), "dependencies": dependencies, "max_attempts": 1_000});
        let Ok(made) = try_send(skep.request(Method::POST, "/api/tickets").json(&body)).await else { return };
        last_answers.lock().await.record(&made.ok(201));
        let order = json!({"assignee": name, "count": 2});
        let Ok(claimed) = try_send(skep.request(Method::POST, "/api/tickets/claim").json(&order)).await
        else {
            return;
        };
        for ticket in claimed.ok(200)["tickets"].as_array().unwrap() {
            last_answers.lock().await.record(ticket);
            let path = format!("/api/tickets/{}", ticket["id"].as_str().unwrap());
            let status = ["completed", "completed", "failed", "pending"][(agent + number) % 4];
            let mut end = json!({"status": status, "attempt": ticket["attempt"]});
            if status != "pending" {
                end["result"] = json!({"by": name, "number": number});
            }
            let Ok(ended) = try_send(skep.request(Method::PATCH, &path).json(&end)).await else { return };
            last_answers.lock().await.record(&ended.ok(200));
        }
    }
}

/// All tickets of the store.
async fn all(skep: &Skep) -> Vec<Value> {
    let (mut tickets, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = skep.get(&format!("/api/tickets?limit=1000{cursor}")).await.ok(200);
        tickets.extend(page["tickets"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else { return tickets };
        cursor = format!("&cursor={next}");
    }
}

/// The ticket as replayed from its events, and the number of claims in them.
async fn replayed(skep: &Skep, id: &str) -> (Value, usize) {
    let history = skep.get(&format!("/api/tickets/{id}/history?limit=1000")).await.ok(200);
    let events = history["events"].as_array().unwrap();
    assert_eq!(events[0]["type"], "ticket.created", "{id} has no beginning");
    let mut ticket = events[0]["ticket"].clone();
    for event in events {
        for (field, change) in event["changes"].as_object().unwrap() {
            assert_eq!(ticket[field], change[0], "{event}");
            ticket[field] = change[1].clone();
        }
    }
    let claims = events.iter().filter(|event| event["type"] == "ticket.claimed").count();
    let attempts = history["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), claims, "{id}: as many attempts as claims");
    let open = attempts.iter().filter(|one| one["ended_at"].is_null()).count();
    assert_eq!(open, usize::from(ticket["status"] == "in_progress"), "{id}: {attempts:?}");
    (ticket, claims)
}

/// Checks that all answers still hold, and that every ticket equals its replayed events. Tickets that did not change
/// since the last check are not replayed again.
async fn check(skep: &Skep, last_answers: &LastAnswers, replayed_before: &mut BTreeMap<String, Value>) {
    let tickets = all(skep).await;
    let by_id: BTreeMap<&str, &Value> =
        tickets.iter().map(|one| (one["id"].as_str().unwrap(), one)).collect();
    let completed: BTreeSet<&str> =
        by_id.iter().filter(|(_, one)| one["status"] == "completed").map(|(id, _)| *id).collect();
    assert!(replayed_before.keys().all(|id| by_id.contains_key(id.as_str())), "a ticket is gone");
    for (id, (version, answered)) in &last_answers.tickets {
        let found = by_id.get(id.as_str()).unwrap_or_else(|| panic!("{id} was answered and is not there"));
        assert!(found["version"].as_u64().unwrap() >= *version, "{found} was {answered}");
        assert!(found["attempt"].as_u64() >= answered["attempt"].as_u64(), "{found} was {answered}");
        if found["version"] == answered["version"] {
            for field in ["status", "assignee", "attempt", "result", "title", "finished_at"] {
                assert_eq!(found[field], answered[field], "{field} of {id}");
            }
        }
        if answered["status"] == "completed" {
            assert_eq!((&found["status"], &found["result"]), (&answered["status"], &answered["result"]));
        }
    }
    let mut changed = Vec::new();
    for ticket in &tickets {
        let id = ticket["id"].as_str().unwrap();
        let open = ticket["dependencies"].as_array().unwrap().iter();
        let open = open.filter(|one| !completed.contains(one.as_str().unwrap())).count();
        assert_eq!(ticket["blocked_by"].as_array().unwrap().len(), open);
        assert_eq!(ticket["ready"], ticket["status"] == "pending" && open == 0, "{ticket}");
        if replayed_before.insert(id.to_owned(), ticket.clone()).as_ref() != Some(ticket) {
            changed.push(ticket);
        }
    }
    let all = changed.into_iter().map(|ticket| check_events(skep, ticket));
    futures_util::stream::iter(all).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Checks that a ticket equals its replayed events.
async fn check_events(skep: &Skep, ticket: &Value) {
    let id = ticket["id"].as_str().unwrap();
    let (replayed, claims) = replayed(skep, id).await;
    for field in ["status", "assignee", "attempt", "result", "version", "title", "started_at", "finished_at"]
    {
        assert_eq!(replayed[field], ticket[field], "{field} of {id} by its events");
    }
    assert_eq!(ticket["attempt"], claims, "{id}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_answer_of_a_server_that_is_killed_is_true() {
    let mut skep = Skep::start().await;
    let last_answers = Arc::new(Mutex::new(LastAnswers::default()));
    let mut replayed = BTreeMap::new();
    for round in 0..ROUNDS {
        let running = Arc::new(skep);
        let before = last_answers.lock().await.answers;
        let mut agents = JoinSet::new();
        for agent in 0..AGENTS {
            agents.spawn(work(Arc::clone(&running), agent, Arc::clone(&last_answers)));
        }
        eventually("an answer", async || last_answers.lock().await.answers > before).await;
        // At a different time in each round, whatever is in progress then.
        tokio::time::sleep(Duration::from_millis(round * 7_919 % LATEST_MS)).await;
        running.kill();
        agents.join_all().await;
        let stopped = Arc::into_inner(running).unwrap();
        skep = Skep::start_on(stopped.killed(), &[]).await;
        if round + 1 == ROUNDS {
            replayed.clear();
        }
        check(&skep, &*last_answers.lock().await, &mut replayed).await;
    }
    let last_answers = last_answers.lock().await;
    assert!(last_answers.tickets.len() > 20, "{} tickets were made", last_answers.tickets.len());
}

#[tokio::test]
async fn an_outage_ends_no_lease_and_forgets_no_request() {
    let skep = Skep::start().await;
    let named = |skep: &Skep| {
        let request = skep.request(Method::POST, "/api/tickets").header("idempotency-key", "before");
        request.json(&json!({"title": "a", "max_attempts": 1}))
    };
    let made = send(named(&skep)).await.ok(201);
    let id = made["id"].as_str().unwrap().to_owned();
    let claim = json!({"assignee": "agent-7", "lease_ms": 10_000});
    send(skep.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&claim)).await.ok(200);
    skep.kill();
    let data_dir = skep.killed();
    // An hour goes by, longer than the lease, which must not matter.
    let hour =
        "UPDATE tickets SET lease_expires_at = lease_expires_at - 3600000 WHERE status = 'in_progress'";
    tamper(&data_dir.path().join("server/skep.db"), hour);
    let skep = Skep::start_on(data_dir, &[]).await;
    // First, because the lease goes on from the start. The new one is the shortest that there is.
    let beat = skep.request(Method::POST, &format!("/api/tickets/{id}/heartbeat"));
    let beat = send(beat.json(&json!({"attempt": 1, "lease_ms": 5_000})));
    assert_eq!(beat.await.ok(200)["attempt"], 1);
    let again = send(named(&skep)).await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(again.ok(201)["id"], json!(id));
    let other = skep.request(Method::POST, "/api/tickets").header("idempotency-key", "before");
    send(other.json(&json!({"title": "b"}))).await.refused(422, "idempotency_mismatch");
    // The dead agent does not block the ticket: after its only attempt, the ticket fails.
    let other = skep.post("/api/tickets", &json!({"title": "b", "dependencies": [id]})).await.ok(201);
    let events = format!("/api/tickets/{}/history", other["id"].as_str().unwrap());
    eventually("the end of the ticket", async || {
        let history = skep.get(&events).await.ok(200);
        history["events"].as_array().unwrap().iter().any(|event| event["type"] == "ticket.blocked")
    })
    .await;
    let failed = skep.get(&format!("/api/tickets/{id}")).await.ok(200);
    assert_eq!((&failed["status"], &failed["result"]["error"]), (&json!("failed"), &json!("max_attempts")));
}
