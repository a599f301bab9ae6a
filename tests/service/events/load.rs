//! Many clients of the stream, and one that disconnects again and again.

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::{Event, sequence};
use crate::{harness::Skep, tickets::done};

/// Writes the events of `count` tickets.
async fn write(skep: Arc<Skep>, writer: usize, count: usize) {
    for number in 0..count {
        let id = skep.simple(&format!("{writer} {number}")).await;
        skep.changed(&id, json!({"status": "in_progress", "assignee": "a"})).await;
        skep.changed(&id, json!({"status": "completed", "result": {"number": number}})).await;
    }
}

/// The numbers of all events of tickets in the store.
async fn all(skep: &Skep, begun: &str) -> Vec<u64> {
    let found = skep.store.events_after(sequence(begun), 1_000_000).await.unwrap();
    found.iter().filter(|event| event.ticket.is_some()).map(|event| event.sequence).collect()
}

fn sequences(events: &[Event]) -> Vec<u64> {
    events.iter().map(|one| sequence(&one.id)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_that_is_killed_a_hundred_times_sees_every_event_once() {
    let skep = Arc::new(Skep::start().await);
    let begun = skep.follow("").await.last;
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        writers.spawn(write(Arc::clone(&skep), writer, 60));
    }
    // Each ticket is created, ready, claimed and completed.
    let (expected, mut place, mut seen) = (4 * 60 * 4, begun.clone(), Vec::new());
    for kill in 0..100 {
        let mut follower = skep.follow(&format!("?types=ticket.*&after={place}")).await;
        // Some disconnect before the first event, all of them while events are written.
        let most = (expected - seen.len()).min(kill % 20);
        seen.extend(follower.take(most).await);
        place = seen.last().map_or_else(|| begun.clone(), |event: &Event| event.id.clone());
    }
    let mut follower = skep.follow(&format!("?types=ticket.*&after={place}")).await;
    seen.extend(follower.take(expected - seen.len()).await);
    writers.join_all().await;
    assert_eq!(sequences(&seen), all(&skep, &begun).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_readers_miss_nothing_and_see_nothing_twice() {
    let skep = Arc::new(Skep::start().await);
    let begun = skep.follow("").await.last;
    let mut readers = JoinSet::new();
    for number in 0..20 {
        let skep = Arc::clone(&skep);
        let begun = begun.clone();
        readers.spawn(async move {
            // Some connect late, and catch up from the store.
            tokio::time::sleep(Duration::from_millis(number * 50)).await;
            let mut follower = skep.follow(&format!("?types=ticket.*&after={begun}")).await;
            let mut seen = Vec::new();
            loop {
                let event = follower.next().await.unwrap();
                let last = event.kind == "ticket.failed";
                seen.push(event);
                if last {
                    return sequences(&seen);
                }
            }
        });
    }
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        writers.spawn(write(Arc::clone(&skep), writer, 40));
    }
    writers.join_all().await;
    let last = done(skep.call(Method::POST, "/api/tickets", &json!({"title": "the last"})), 201).await;
    skep.changed(last["id"].as_str().unwrap(), json!({"status": "failed"})).await;
    let expected = all(&skep, &begun).await;
    assert_eq!(expected.len(), 4 * 40 * 4 + 3);
    for seen in readers.join_all().await {
        assert_eq!(seen, expected);
    }
}
