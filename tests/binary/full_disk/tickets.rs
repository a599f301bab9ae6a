//! Claims on a full disk.

use std::{collections::BTreeSet, fs};

use reqwest::Method;
use serde_json::{Value, json};

use super::{REFUSALS, fill, on_a_small_disk};
use crate::harness::{Answer, Skep, eventually, send};

const TICKETS: usize = 120;

async fn claim(skep: &Skep) -> Answer {
    skep.post("/api/tickets/claim", &json!({"assignee": "agent-7"})).await
}

fn ids(tickets: &Value) -> BTreeSet<String> {
    tickets["tickets"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

async fn listed(skep: &Skep, status: &str) -> BTreeSet<String> {
    ids(&skep.get(&format!("/api/tickets?limit=1000&status={status}")).await.ok(200))
}

/// What happened to a ticket, and how many attempts there were at it.
async fn history(skep: &Skep, id: &str) -> (Vec<Value>, usize) {
    let history = skep.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    let events = history["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    (events, history["attempts"].as_array().unwrap().len())
}

/// Claims one after the other until the disk is full.
async fn claim_until_refused(skep: &Skep, held: &mut BTreeSet<String>) {
    let mut refused = 0;
    while refused < REFUSALS {
        let answer = claim(skep).await;
        if answer.status == 200 {
            refused = 0;
            held.extend(ids(&answer.ok(200)));
            assert!(held.len() < TICKETS - 10, "the disk never fills");
        } else {
            refused += 1;
            answer.refused(503, "store_unavailable");
            assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
        }
    }
}

/// Claims all that is left, none of it twice.
async fn claim_the_rest(skep: &Skep, held: &mut BTreeSet<String>) {
    let order = json!({"assignee": "agent-9", "count": 100});
    loop {
        let claimed = ids(&skep.post("/api/tickets/claim", &order).await.ok(200));
        if claimed.is_empty() {
            return;
        }
        assert!(claimed.is_disjoint(held), "claimed twice");
        held.extend(claimed);
    }
}

#[tokio::test]
async fn a_claim_that_finds_the_disk_full_is_refused_whole() {
    let (skep, folder) = on_a_small_disk().await;
    let tickets: Vec<Value> =
        (0..TICKETS).map(|number| json!({"title": format!("{number}"), "max_attempts": 1})).collect();
    let made = skep.post("/api/tickets/batch", &json!({"tickets": tickets})).await.ok(201);
    let all = ids(&made);
    let order = json!({"assignee": "agent-1", "lease_ms": 8_000, "count": 1});
    let lapses = ids(&skep.post("/api/tickets/claim", &order).await.ok(200));
    let mut held = ids(&claim(&skep).await.ok(200));

    fill(&folder.join("filler"));
    // What the store has on the disk already takes some more.
    claim_until_refused(&skep, &mut held).await;
    // In whatever way it is claimed, and whatever else is asked of it.
    let next = all.iter().find(|id| !held.contains(*id) && !lapses.contains(*id)).unwrap();
    let path = format!("/api/tickets/{next}");
    for body in [json!({"assignee": "a"}), json!({"status": "completed"}), json!({"title": "b"})] {
        send(skep.request(Method::PATCH, &path).json(&body)).await.refused(503, "store_unavailable");
    }
    let named = skep
        .request(Method::POST, "/api/tickets")
        .header("idempotency-key", "k")
        .json(&json!({"title": "c"}));
    send(named).await.refused(503, "store_unavailable");
    send(skep.request(Method::DELETE, &path)).await.refused(503, "store_unavailable");
    // A lease runs out meanwhile, and its end cannot be written.
    let warning = "a ticket's time is up and was not written";
    eventually("the end of a lease", async || skep.log().contains(warning)).await;
    assert_eq!(listed(&skep, "in_progress").await, held.union(&lapses).cloned().collect());
    let before = ["ticket.created", "ticket.ready"].map(Value::from).to_vec();
    assert_eq!(history(&skep, next).await, (before.clone(), 0));

    fs::remove_file(folder.join("filler")).unwrap();
    eventually("room", async || skep.get("/api/health").await.status == 200).await;
    eventually("the end of the lease", async || listed(&skep, "failed").await == lapses).await;
    assert_eq!(listed(&skep, "in_progress").await, held, "what was refused holds nothing");
    assert_eq!(listed(&skep, "pending").await.len(), TICKETS - held.len() - 1);
    claim_the_rest(&skep, &mut held).await;
    assert_eq!(held.len(), TICKETS - 1);
    assert_eq!(history(&skep, next).await, ([before, vec![json!("ticket.claimed")]].concat(), 1));
}
