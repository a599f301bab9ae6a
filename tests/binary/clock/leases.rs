//! Leases, runtimes and back-offs under a clock that jumps.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Clock, HOUR_S};
use crate::harness::{Skep, eventually, send, step};

/// The shortest times that there are.
const BRIEF_MS: u64 = 5_000;
/// A lease that the test does not reach, and that two hours would.
const LONG_MS: u64 = 3_600_000;

async fn ticket(skep: &Skep, more: Value) -> String {
    let mut body = json!({"title": "a", "max_attempts": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    skep.post("/api/tickets", &body).await.ok(201)["id"].as_str().unwrap().to_owned()
}

async fn patch(skep: &Skep, id: &str, body: Value) -> Value {
    send(skep.request(Method::PATCH, &format!("/api/tickets/{id}")).json(&body)).await.ok(200)
}

/// A ticket that is held for so long.
async fn held(skep: &Skep, lease_ms: u64, more: Value) -> String {
    let id = ticket(skep, more).await;
    patch(skep, &id, json!({"assignee": "agent-7", "lease_ms": lease_ms})).await;
    id
}

async fn record(skep: &Skep, id: &str) -> Value {
    skep.get(&format!("/api/tickets/{id}")).await.ok(200)
}

async fn outcome(skep: &Skep, id: &str) -> Value {
    let history = skep.get(&format!("/api/tickets/{id}/history")).await.ok(200);
    history["attempts"][0]["outcome"].clone()
}

/// That each of these is still in its first attempt, and may beat.
async fn hold_on(skep: &Skep, ids: &[String]) {
    for id in ids {
        let found = record(skep, id).await;
        assert_eq!((&found["status"], &found["attempt"]), (&json!("in_progress"), &json!(1)), "{found}");
        let beat = json!({"attempt": 1, "lease_ms": LONG_MS});
        skep.post(&format!("/api/tickets/{id}/heartbeat"), &beat).await.ok(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hours_forth_and_back_end_no_lease_early_and_none_late_and_keys_by_the_wall() {
    let clock = Clock::make();
    let skep = clock.start_without_vms().await;
    step("keys", super::keys(&clock, &skep)).await;
    step("leases, runtimes and back-offs", leases(&clock, &skep)).await;
}

async fn leases(clock: &Clock, skep: &Skep) {
    let mut long = Vec::new();
    for shift_s in [2 * HOUR_S, -2 * HOUR_S] {
        long.push(held(skep, LONG_MS, json!({})).await);
        let lapses = held(skep, BRIEF_MS, json!({})).await;
        let ends = held(skep, LONG_MS, json!({"max_runtime_ms": BRIEF_MS})).await;
        let rests = held(skep, LONG_MS, json!({})).await;
        patch(skep, &rests, json!({"status": "pending", "retry_after_ms": BRIEF_MS})).await;
        clock.move_by(shift_s);
        // Were any of these the clock's on the wall, it would be two hours late, or those above as much too early.
        for (id, why) in [(&lapses, "lease_expired"), (&ends, "max_runtime")] {
            eventually(why, async || record(skep, id).await["status"] == "failed").await;
            assert_eq!(outcome(skep, id).await, why);
        }
        eventually("the end of a rest", async || record(skep, &rests).await["ready"] == true).await;
        hold_on(skep, &long).await;
        // A lease that begins after the jump has its full length.
        long.push(held(skep, LONG_MS, json!({})).await);
    }
    hold_on(skep, &long).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_hours_ends_no_lease_and_due_tickets_become_ready() {
    let clock = Clock::make();
    let skep = clock.start_without_vms().await;
    let due = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(HOUR_S);
    let waits = ticket(&skep, json!({"not_before": due.to_string()})).await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(held(&skep, LONG_MS, json!({})).await);
    }
    let wreck = skep.crash();
    clock.move_by(2 * HOUR_S);
    let skep = wreck.start_as(|command| clock.preload(command.env("PATH", "/nonexistent"))).await;
    let claimed =
        skep.post("/api/tickets/claim", &json!({"assignee": "next", "wait_ms": 60_000})).await.ok(200);
    assert_eq!(claimed["tickets"][0]["id"], json!(waits), "{claimed}");
    hold_on(&skep, &all).await;
}
