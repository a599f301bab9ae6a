//! Event ids that the store does not know, or no longer knows.

use jiff::Timestamp;
use reqwest::Method;
use serde_json::json;
use skep_api::Scope;
use skep_store::{Event, TrimHistory};

use super::{filters::follow, sequence};
use crate::harness::Skep;

/// Deletes the oldest events.
async fn delete_oldest(skep: &Skep, count: u32) {
    let before = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let trimmed =
        skep.store.trim_history(TrimHistory { before, bytes: 1 << 30, batch: count }).await.unwrap();
    assert_eq!(trimmed.events, u64::from(count));
}

#[tokio::test]
async fn an_event_id_older_than_the_kept_events_begins_with_a_gap() {
    let skep = Skep::start().await;
    let begun = skep.follow("").await.last;
    let id = skep.simple("a").await;
    skep.boots(6).await;
    let kept = skep.follow(&format!("?after={begun}")).await.take(8).await;
    // All earlier events, and five of these.
    let before = sequence(&kept[5].id) - 1;
    delete_oldest(&skep, u32::try_from(before).unwrap()).await;
    let mut follower = skep.follow(&format!("?after={begun}")).await;
    let gap = follower.next().await.unwrap();
    assert_eq!(gap.kind, "stream.gap");
    assert_eq!((&gap.data["reason"], &gap.data["from"]), (&json!("expired"), &json!(begun)));
    assert_eq!((sequence(&gap.id), &gap.data["id"]), (before, &json!(gap.id)));
    assert_eq!(follower.take(3).await, kept[5..], "it goes on with the oldest");
    // The id of the gap is valid, and so is that of the last missing event.
    for place in [&gap.id, &kept[4].id] {
        assert_eq!(skep.follow(&format!("?after={place}")).await.take(3).await, kept[5..]);
    }
    // A stream of one ticket sends its record in place of missing events.
    let mut follower = skep.follow(&format!("?ticket={id}&after={begun}")).await;
    let events = follower.take(2).await;
    assert_eq!((events[0].kind.as_str(), events[1].kind.as_str()), ("stream.gap", "ticket.current"));
    assert_eq!(events[1].data["ticket"]["id"], json!(id));
    skep.changed(&id, json!({"status": "in_progress"})).await;
    assert_eq!(follower.next().await.unwrap().kind, "ticket.claimed");
}

#[tokio::test]
async fn an_account_with_many_events_has_a_gap_and_others_have_none() {
    let skep = Skep::start().await;
    let begun = skep.follow("").await.last;
    skep.simple("older than theirs").await;
    let acme = skep.other_account("acme").await;
    let key = skep.key_of(&acme, &[Scope::TicketsRead, Scope::TicketsWrite]).await;
    let ticket = skep.bare(Method::POST, "/api/tickets").bearer_auth(&key).json(&json!({"title": "theirs"}));
    assert_eq!(ticket.send().await.unwrap().status(), 201);
    skep.boots(20).await;
    let kept = skep.follow(&format!("?types=vm.*&after={begun}")).await.take(20).await;
    let earlier = skep.store.events_after(0, 1000).await.unwrap();
    let is_earlier =
        |event: &&Event| event.account == skep.account.id && event.sequence < sequence(&kept[0].id);
    let batch = u32::try_from(earlier.iter().filter(is_earlier).count()).unwrap() + 5;
    // One batch, for which any history is too much.
    let before = Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let trimmed = skep.store.trim_history(TrimHistory { before, bytes: 0, batch }).await.unwrap();
    assert_eq!(trimmed.events, u64::from(batch));
    let mut own = skep.follow(&format!("?types=vm.*&after={begun}")).await;
    assert_eq!(own.next().await.unwrap().kind, "stream.gap");
    assert_eq!(own.take(15).await, kept[5..]);
    // Theirs are older, and no event of theirs is gone.
    let mut theirs = follow(&skep, &key, &format!("?after={begun}")).await;
    let events = theirs.take(2).await;
    assert_eq!((events[0].kind.as_str(), events[1].kind.as_str()), ("ticket.created", "ticket.ready"));
}

#[tokio::test]
async fn an_event_id_of_another_epoch_of_the_store_begins_with_a_gap() {
    let skep = Skep::start().await;
    let begun = skep.follow("").await.last;
    skep.boots(2).await;
    let epoch = begun.split('_').nth(1).unwrap().to_owned();
    for foreign in [begun.replace(&epoch, "0123456789abcdef"), format!("evt_{epoch}_100000")] {
        let mut follower = skep.follow(&format!("?types=vm.*&after={foreign}")).await;
        let events = follower.take(3).await;
        assert_eq!((events[0].kind.as_str(), &events[0].data["reason"]), ("stream.gap", &json!("restored")));
        assert_eq!(events[0].data["from"], json!(foreign));
        assert!(
            events[1..].iter().all(|one| one.kind == "vm.booted" && one.id.contains(&epoch)),
            "{events:?}"
        );
        skep.boots(1).await;
        skep.store
            .end_vms(skep_store::EndVms {
                vms: skep
                    .store
                    .live_vms()
                    .await
                    .unwrap()
                    .iter()
                    .skip(2)
                    .map(|record| skep_store::VmToEnd { vm: record.vm.id, message: None })
                    .collect(),
                reason: skep_api::swarm::EndReason::Deleted,
                at: Timestamp::now(),
            })
            .await
            .unwrap();
    }
}
