//! Leases, runtimes and back-offs. The tests wait for events, not for fixed times.

use std::{sync::Arc, time::Duration};

use jiff::{Timestamp, ToSpan};
use reqwest::Method;
use serde_json::json;

use super::done;
use crate::{
    clock::advance_clock,
    harness::{Options, Skep},
};

/// The leases, run times and back-offs that end here have this length, the shortest that a lease may have.
const SHORTEST: Duration = Duration::from_secs(5);

/// A claim that waits for the maximum time.
async fn claim(skep: &Skep) -> serde_json::Value {
    let order = json!({"assignee": "next", "wait_ms": 60_000});
    let claimed = done(skep.call(Method::POST, "/api/tickets/claim", &order), 200).await;
    claimed["tickets"][0].clone()
}

#[tokio::test]
async fn an_agent_that_dies_strands_nothing() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let order = json!({"assignee": "dead", "lease_ms": 5_000});
    done(skep.call(Method::POST, "/api/tickets/claim", &order), 200).await;
    advance_clock(SHORTEST).await;
    let claimed = claim(&skep).await;
    assert_eq!((&claimed["id"], &claimed["attempt"]), (&json!(id), &json!(2)));
    assert_eq!(skep.events(&id).await, ["created", "ready", "claimed", "lease_expired", "ready", "claimed"]);
}

#[tokio::test]
async fn after_an_outage_a_lease_ends_when_its_record_says() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"assignee": "a", "lease_ms": 60_000})).await;
    let before = skep.record(&id).await;
    let data = skep.end().await;
    // The server was down for an hour.
    let database = rusqlite::Connection::open(data.path().join("skep.db")).unwrap();
    let hour =
        "UPDATE tickets SET lease_expires_at = lease_expires_at - 3600000 WHERE status = 'in_progress'";
    assert_eq!(database.execute(hour, []).unwrap(), 1);
    drop(database);
    let started = Timestamp::now();
    let skep = Skep::start_on(data, Options::default()).await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let after = loop {
        assert!(std::time::Instant::now() < deadline, "the time of the lease is still in the past");
        let record = skep.record(&id).await;
        let ends: Timestamp = record["lease_expires_at"].as_str().unwrap().parse().unwrap();
        // The new time is written once the server runs.
        if ends > started {
            assert!(ends >= started + 59.seconds() && ends <= Timestamp::now() + 60.seconds(), "{ends}");
            break record;
        }
        tokio::task::yield_now().await;
    };
    for field in ["status", "assignee", "attempt", "version", "updated_at"] {
        assert_eq!(after[field], before[field], "{field}");
    }
}

#[tokio::test]
async fn no_beat_keeps_an_attempt_beyond_its_runtime() {
    let skep = Arc::new(Skep::start().await);
    let id = skep.ticket(json!({"title": "a", "max_runtime_ms": 5_000})).await;
    skep.changed(&id, json!({"assignee": "slow", "lease_ms": 3_600_000})).await;
    advance_clock(SHORTEST).await;
    let claimed = claim(&skep).await;
    assert_eq!((&claimed["id"], &claimed["attempt"]), (&json!(id), &json!(2)));
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    assert_eq!(history["attempts"][0]["outcome"], "max_runtime");
}

#[tokio::test]
async fn a_ticket_is_ready_when_its_time_comes() {
    let skep = Skep::start().await;
    let later = Timestamp::now() + 1.hour();
    let early = skep.ticket(json!({"title": "early", "not_before": later.to_string()})).await;
    assert_eq!(skep.record(&early).await["ready"], false);
    let message = skep.conflict(&early, json!({"assignee": "early"}), "not_yet").await;
    assert!(message.contains("not_before"), "{message}");
    let soon = Timestamp::now() + 2.seconds();
    let id = skep.ticket(json!({"title": "a", "not_before": soon.to_string()})).await;
    let claimed = claim(&skep).await;
    assert_eq!(claimed["id"], json!(id));
    assert!(Timestamp::now() >= soon);
    assert_eq!(skep.events(&id).await, ["created", "ready", "claimed"]);
}

#[tokio::test]
async fn a_released_ticket_is_ready_after_the_given_delay() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"assignee": "a"})).await;
    let rests = skep.changed(&id, json!({"status": "pending", "retry_after_ms": 5_000})).await;
    assert_eq!((&rests["ready"], &rests["assignee"]), (&json!(false), &json!(null)));
    advance_clock(SHORTEST).await;
    assert_eq!(claim(&skep).await["attempt"], 2);
    assert_eq!(skep.events(&id).await, ["created", "ready", "claimed", "released", "ready", "claimed"]);
}
