//! Agents that are late, stale or suspended.

use jiff::{Timestamp, ToSpan};
use reqwest::Method;
use serde_json::json;
use skep_store::{AttemptTimer, EndAttempt};

use super::done;
use crate::harness::{Refused, Skep, refused};

/// Ends an attempt as its timer would, without waiting for it.
async fn expire(skep: &Skep, id: &str, attempt: u32, beats: u64) -> bool {
    let ticket = id.parse().unwrap();
    let why = AttemptTimer::Lease { beats };
    skep.store.end_attempt(EndAttempt { ticket, attempt, timer: why, at: Timestamp::now() }).await.unwrap()
}

#[tokio::test]
async fn a_stale_agent_cannot_complete_a_reclaimed_ticket() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"assignee": "agent-1"})).await;
    assert!(expire(&skep, &id, 1, 0).await);
    skep.changed(&id, json!({"assignee": "agent-9"})).await;
    // It was suspended, and resumes after another agent's claim: each of its calls is refused.
    let stale = json!({"status": "completed", "attempt": 1, "result": {"by": 1}});
    let message = skep.conflict(&id, stale, "superseded").await;
    assert!(message.starts_with("attempt 1 was superseded by attempt 2 (agent-9)"), "{message}");
    let beat = skep.call(Method::POST, &format!("/api/tickets/{id}/heartbeat"), &json!({"attempt": 1}));
    let Refused { status, code, .. } = refused(beat.send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (409, "superseded"));
    skep.conflict(&id, json!({"status": "completed", "assignee": "agent-1"}), "claim_lost").await;
    skep.conflict(&id, json!({"status": "pending", "attempt": 1}), "superseded").await;
    skep.conflict(&id, json!({"assignee": "agent-1"}), "claim_lost").await;
    let done = skep.changed(&id, json!({"status": "completed", "attempt": 2, "result": {"by": 9}})).await;
    assert_eq!(done["result"], json!({"by": 9}));
}

#[tokio::test]
async fn a_late_finish_counts_where_nobody_claimed_since() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"assignee": "agent-1"})).await;
    assert!(expire(&skep, &id, 1, 0).await);
    let beat = skep.call(Method::POST, &format!("/api/tickets/{id}/heartbeat"), &json!({"attempt": 1}));
    assert_eq!(refused(beat.send().await.unwrap()).await.code, "lease_lost");
    let late =
        skep.changed(&id, json!({"status": "completed", "attempt": 1, "result": {"late": true}})).await;
    assert_eq!((&late["attempt"], &late["assignee"]), (&json!(1), &json!("agent-1")));
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    assert_eq!(history["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(history["attempts"][0]["outcome"], "completed");
    assert_eq!(
        skep.events(&id).await,
        ["created", "ready", "claimed", "lease_expired", "ready", "completed"]
    );
}

#[tokio::test]
async fn a_beat_that_came_in_time_outruns_the_timer() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"assignee": "agent-1"})).await;
    let beat = json!({"attempt": 1, "progress": "half"});
    let beaten = done(skep.call(Method::POST, &format!("/api/tickets/{id}/heartbeat"), &beat), 200).await;
    assert_eq!(beaten["attempt"], 1);
    assert!(!expire(&skep, &id, 1, 0).await, "the timer of the lease before the beat");
    let record = skep.record(&id).await;
    assert_eq!((&record["status"], &record["progress"]), (&json!("in_progress"), &json!("half")));
    assert_eq!((&record["version"], &record["lease_expires_at"]), (&json!(2), &beaten["lease_expires_at"]));
    assert!(expire(&skep, &id, 1, 1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_completion_and_the_end_of_its_lease_never_both_count() {
    let skep = Skep::start().await;
    for _ in 0..super::claims::rounds(50) {
        let id = skep.simple("a").await;
        skep.changed(&id, json!({"assignee": "agent-1"})).await;
        let (answer, expired) = tokio::join!(
            skep.patch(&id, json!({"status": "completed", "attempt": 1, "result": {}})),
            expire(&skep, &id, 1, 0)
        );
        // Without another claim, the ticket is completed, in time or late.
        assert_eq!(answer.status(), 200);
        let events = skep.events(&id).await;
        assert_eq!(events.contains(&"lease_expired".to_owned()), expired, "{events:?}");
        assert_eq!(events.iter().filter(|event| *event == "completed").count(), 1);
        assert_eq!(skep.record(&id).await["status"], "completed");
    }
}

#[tokio::test]
async fn attempts_that_end_by_themselves_make_it_rest_and_then_fail() {
    let skep = Skep::start().await;
    let id = skep.ticket(json!({"title": "a", "max_attempts": 2})).await;
    let dependent = skep.ticket(json!({"title": "b", "dependencies": [id]})).await;
    skep.changed(&id, json!({"assignee": "agent-1"})).await;
    assert!(expire(&skep, &id, 1, 0).await);
    let again = skep.record(&id).await;
    assert_eq!(
        (&again["status"], &again["ready"]),
        (&json!("pending"), &json!(true)),
        "the first retry is at once"
    );
    skep.changed(&id, json!({"assignee": "agent-2"})).await;
    assert!(expire(&skep, &id, 2, 0).await);
    let failed = skep.record(&id).await;
    assert_eq!((&failed["status"], &failed["result"]["error"]), (&json!("failed"), &json!("max_attempts")));
    let named: Vec<_> =
        failed["result"]["attempts"].as_array().unwrap().iter().map(|one| one["assignee"].clone()).collect();
    assert_eq!(named, ["agent-1", "agent-2"]);
    assert_eq!(skep.events(&dependent).await, ["created", "blocked"]);
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    assert!(history["attempts"].as_array().unwrap().iter().all(|one| one["outcome"] == "lease_expired"));
    let retried = skep.changed(&id, json!({"status": "pending"})).await;
    assert_eq!(
        (&retried["attempt"], &retried["result"], &retried["ready"]),
        (&json!(2), &json!(null), &json!(true))
    );
}

#[tokio::test]
async fn why_names_the_end_of_a_back_off_and_what_a_finished_ticket_waits_for() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    let why = async |id: &str| skep.read(&format!("/api/tickets/{id}/why")).await;
    let mut ended_from = Timestamp::now();
    for attempt in 1..=2 {
        skep.changed(&id, json!({"assignee": "agent-1"})).await;
        ended_from = Timestamp::now();
        assert!(expire(&skep, &id, attempt, 0).await);
    }
    let found = why(&id).await;
    let reasons = found["reasons"].as_array().unwrap();
    assert_eq!((&found["ready"], reasons.len()), (&json!(false), 1), "{found}");
    assert_eq!(
        (&reasons[0]["code"], &reasons[0]["message"]),
        (&json!("waiting"), &json!("it waits after 2 attempts without a result"))
    );
    // The back-off is ten seconds; the record rounds to milliseconds.
    let until: Timestamp = reasons[0]["until"].as_str().unwrap().parse().unwrap();
    assert!(until > ended_from + 9.seconds() && until <= Timestamp::now() + 10.seconds(), "{until}");
    for (status, who) in [("failed", "a retry"), ("completed", "nothing")] {
        let id = skep.simple(status).await;
        skep.changed(&id, json!({"status": status})).await;
        let found = why(&id).await;
        let reason = &found["reasons"][0];
        assert_eq!((&found["ready"], &reason["code"]), (&json!(false), &json!(status)));
        assert!(reason["who"].as_str().unwrap().starts_with(who), "{found}");
    }
}
