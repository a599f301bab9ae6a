//! The event stream over HTTP.

mod ends;
mod filters;
mod gaps;
mod load;

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use skep_accounts::KeySecret;
use skep_api::{Environment, Scope, swarm::EndReason};
use skep_store::{EndVms, KeyStore, NewKey, RevokeKey, SqliteSettings, SqliteStore, VmToEnd};

use crate::{
    clock::advance_clock,
    harness::{Event, Follower, Skep, eventually},
};

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The number in an id.
fn sequence(id: &str) -> u64 {
    id.rsplit_once('_').unwrap().1.parse().unwrap()
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|one| one.kind.as_str()).collect()
}

#[tokio::test]
async fn every_event_is_sent_once_in_order() {
    let skep = Skep::start().await;
    let mut follower = skep.follow("").await;
    let begun = follower.last.clone();
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"status": "in_progress", "assignee": "agent-7"})).await;
    skep.boots(1).await;
    let (_, record) = skep.key(&[Scope::TicketsRead]).await;
    let revoke =
        RevokeKey { account: skep.account.id, id: record.key.id, at: Timestamp::now(), request_id: None };
    skep.store.revoke_key(revoke).await.unwrap();
    let all = follower.take(6).await;
    let expected =
        ["ticket.created", "ticket.ready", "ticket.claimed", "vm.booted", "key.created", "key.revoked"];
    assert_eq!(kinds(&all), expected);
    assert!(all.windows(2).all(|pair| sequence(&pair[0].id) < sequence(&pair[1].id)), "{all:?}");
    for event in &all {
        assert_eq!((&event.data["id"], &event.data["type"]), (&json!(event.id), &json!(event.kind)));
        assert!(event.data["at"].as_str().unwrap().ends_with('Z'), "{event:?}");
    }
    // The events agree with the history of the ticket and with the documented types.
    let history = skep.read(&format!("/api/tickets/{id}/history")).await;
    let of_ticket: Vec<&Value> = all[..3].iter().map(|event| &event.data).collect();
    assert_eq!(of_ticket, history["events"].as_array().unwrap().iter().collect::<Vec<_>>());
    let read = |event: &Event| event.data.to_string();
    serde_json::from_str::<skep_api::tickets::TicketEvent>(&read(&all[0])).unwrap();
    let vm: skep_api::events::VmEvent = serde_json::from_str(&read(&all[3])).unwrap();
    assert_eq!((vm.pid, vm.request_id.as_deref()), (1, Some("boot-1")));
    let key: skep_api::events::KeyEvent = serde_json::from_str(&read(&all[4])).unwrap();
    assert_eq!((key.key, key.request_id), (record.key.id, None));

    // The stream resumes after every id with the same events, by the parameter and by the header.
    let places: Vec<&String> = std::iter::once(&begun).chain(all.iter().map(|event| &event.id)).collect();
    for (seen, place) in places[..6].iter().enumerate() {
        let mut again = skep.follow(&format!("?after={place}")).await;
        assert_eq!(again.take(6 - seen).await, all[seen..]);
        // On reconnect, a browser keeps the URL and adds the header, so the header wins.
        let request = skep.request(Method::GET, &format!("/api/events?after={begun}"));
        let mut again = Follower::of(request.header("last-event-id", *place)).await;
        assert_eq!(again.take(6 - seen).await, all[seen..]);
    }
}

#[tokio::test]
async fn the_end_of_a_lost_vm_is_explained_in_a_sentence() {
    let skep = Skep::start().await;
    let mut follower = skep.follow("?types=vm.ended").await;
    skep.boots(2).await;
    let running = skep.store.live_vms().await.unwrap();
    let messages = [Some("it did not answer within 30 s"), None];
    let vms = running.iter().zip(messages);
    let vms = vms.map(|(record, message)| VmToEnd { vm: record.vm.id, message: message.map(str::to_owned) });
    let command = EndVms { vms: vms.collect(), reason: EndReason::Lost, at: Timestamp::now() };
    skep.store.end_vms(command).await.unwrap();
    for (event, message) in follower.take(2).await.iter().zip(messages) {
        let body: skep_api::events::VmEvent = serde_json::from_value(event.data.clone()).unwrap();
        assert_eq!((body.reason, body.message.as_deref()), (Some(EndReason::Lost), message));
        assert_eq!(event.data.get("message").is_some(), message.is_some(), "{event:?}");
    }
}

#[tokio::test]
async fn a_silent_stream_has_comments_that_name_its_place() {
    let skep = Skep::start().await;
    let mut follower = skep.follow("?types=vm.*").await;
    let begun = follower.last.clone();
    skep.simple("not asked for").await;
    // One comes every 15 s. What was passed over is not looked at again.
    let mut place = begun.clone();
    eventually("a comment that names a later place", async || {
        advance_clock(Duration::from_secs(15)).await;
        let chunk = follower.answer.chunk().await.unwrap().unwrap();
        follower.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        place = follower.buffer.trim_end().rsplit_once("id: ").unwrap().1.to_owned();
        sequence(&place) > sequence(&begun)
    })
    .await;
    assert!(follower.buffer.matches(": here\n").count() >= 2, "{}", follower.buffer);
    skep.boots(1).await;
    assert_eq!(skep.follow(&format!("?after={place}")).await.next().await.unwrap().kind, "vm.booted");
}

#[tokio::test]
async fn events_written_by_another_process_are_sent() {
    let skep = Skep::start().await;
    let mut follower = skep.follow("?types=key.*").await;
    let settings = SqliteSettings::at(skep.data.path().join("skep.db"));
    let elsewhere = SqliteStore::open(settings).await.unwrap();
    let secret = KeySecret::from_random(Environment::Test, [9; 32]);
    let key = NewKey {
        account: skep.account.id,
        name: "by command".to_owned(),
        environment: Environment::Test,
        role: None,
        scopes: vec![Scope::FilesRead],
        vm: None,
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at: None,
        at: Timestamp::now(),
        request_id: None,
    };
    elsewhere.create_key(key).await.unwrap();
    assert_eq!(follower.next().await.unwrap().data["name"], "by command");
}
