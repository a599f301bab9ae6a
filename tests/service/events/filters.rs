//! Filters of event streams, and the events that a key may read.

use reqwest::Method;
use serde_json::json;
use skep_api::Scope;
use skep_store::{EventFamily, EventKind};

use super::{Follower, kinds};
use crate::{
    harness::{Refused, Skep, refused},
    openapi::document,
    openapi_completeness::valid,
};

async fn ask(skep: &Skep, scopes: &[Scope], query: &str) -> Refused {
    let (key, _) = skep.key(scopes).await;
    let request = skep.bare(Method::GET, &format!("/api/events{query}")).bearer_auth(key);
    refused(request.send().await.unwrap()).await
}

/// Follows the stream with this key.
pub(super) async fn follow(skep: &Skep, key: &str, query: &str) -> Follower {
    Follower::of(skep.bare(Method::GET, &format!("/api/events{query}")).bearer_auth(key)).await
}

#[tokio::test]
async fn types_that_a_key_may_not_read_are_refused_by_name_and_left_out_where_none_is_named() {
    let skep = Skep::start().await;
    for (scopes, query, scope) in [
        (&[Scope::FilesRead, Scope::TicketsWrite][..], "", "tickets:read"),
        (&[Scope::TicketsRead], "?types=vm.*", "swarm:read"),
        (&[Scope::TicketsRead], "?types=ticket.*,vm.ended", "swarm:read"),
        (&[Scope::TicketsRead, Scope::SwarmRead], "?types=key.revoked", "admin"),
        (&[Scope::Admin], "?types=ticket.created", "tickets:read"),
        (&[Scope::SwarmRead], "?ticket=tkt_01jv0000000000000000000000", "tickets:read"),
    ] {
        let found = ask(&skep, scopes, query).await;
        assert_eq!((found.status, found.code.as_str()), (403, "scope_missing"), "{query}");
        assert!(found.message.contains(scope), "{query}: {}", found.message);
    }
    let (key, _) = skep.key(&[Scope::SwarmRead]).await;
    let mut follower = follow(&skep, &key, "").await;
    skep.simple("a").await;
    skep.boots(1).await;
    assert_eq!(follower.next().await.unwrap().kind, "vm.booted");
}

#[tokio::test]
async fn only_requested_events_are_sent() {
    let skep = Skep::start().await;
    let begun = skep.follow("").await.last;
    let mut follower = skep.follow("?types=ticket.claimed,vm.*").await;
    let id = skep.simple("a").await;
    skep.changed(&id, json!({"status": "in_progress"})).await;
    skep.boots(2).await;
    let all = follower.take(3).await;
    assert_eq!(kinds(&all), ["ticket.claimed", "vm.booted", "vm.booted"]);
    // The same for events from the store.
    let mut again = skep.follow(&format!("?types=ticket.claimed,vm.*&after={begun}")).await;
    assert_eq!(again.take(3).await, all);
    for query in [
        "?types=",
        "?types=run",
        "?types=vm.*,",
        "?after=7",
        "?after=evt_x_7",
        "?ticket=tkt_x&types=vm.*",
        "?since=yesterday",
        "?since=",
    ] {
        let found = refused(skep.get(&format!("/api/events{query}")).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, "invalid_value"), "{query}: {}", found.message);
    }
}

#[tokio::test]
async fn a_stream_begins_with_a_time() {
    let skep = Skep::start().await;
    skep.boots(2).await;
    let all = skep.follow("?types=vm.*&since=1970-01-01T00:00:00Z").await.take(2).await;
    let since = all[1].data["at"].as_str().unwrap();
    // Both may have been written in the same millisecond.
    let first = skep.follow(&format!("?types=vm.*&since={since}")).await.next().await.unwrap();
    assert_eq!(first.data["at"], all[1].data["at"]);
    // New events follow, as after an event id, also where the time is in the future.
    let mut later = skep.follow("?types=vm.*&since=9999-01-01T00:00:00Z").await;
    skep.boots(1).await;
    assert_eq!(later.next().await.unwrap().kind, "vm.booted");
    let id = skep.simple("a").await;
    let events = skep.follow(&format!("?ticket={id}&since=1970-01-01T00:00:00Z")).await.take(2).await;
    assert_eq!(kinds(&events), ["ticket.created", "ticket.ready"], "no record: nothing is missing");
    let both = refused(skep.get(&format!("/api/events?since={since}&after={}", all[0].id)).await).await;
    assert_eq!((both.status, both.code.as_str()), (400, "invalid_value"), "{}", both.message);
    let again = skep.request(Method::GET, "/api/events?types=vm.*&since=1970-01-01T00:00:00Z");
    let again = again.header("last-event-id", &all[0].id);
    assert_eq!(Follower::of(again).await.next().await.unwrap().id, all[1].id, "a browser that comes back");
}

#[tokio::test]
async fn the_document_allows_the_types_that_are_taken_and_no_others() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let parameters = document["paths"]["/api/events"]["get"]["parameters"].as_array().unwrap();
    let types = parameters.iter().find(|one| one["name"] == "types").unwrap();
    let webhook = &document["components"]["schemas"]["CreateWebhook"];
    let families = EventFamily::ALL.iter().map(|family| family.pattern());
    let names: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).chain(families).collect();
    assert_eq!(skep.get(&format!("/api/events?types={}", names.join(","))).await.status(), 200);
    for name in names {
        let body = json!({"url": "https://hooks.example.com/skep", "types": [name]});
        valid(&document, &types["schema"], &json!(name)).and(valid(&document, webhook, &body)).unwrap();
    }
    for (text, taken) in [
        ("vm.booted,key.*,ticket.lease_expired", true),
        ("", false),
        ("vm", false),
        ("vm.*,", false),
        ("vmx*", false),
        ("run.*", false),
    ] {
        assert_eq!(valid(&document, &types["schema"], &json!(text)).is_ok(), taken, "{text}");
        let answer = skep.get(&format!("/api/events?types={text}")).await;
        assert_eq!(answer.status() == 200, taken, "{text}");
    }
}

#[tokio::test]
async fn events_of_another_account_are_never_sent() {
    let skep = Skep::start().await;
    let other = skep.other_account("acme").await;
    let key =
        skep.key_of(&other, &[Scope::TicketsRead, Scope::TicketsWrite, Scope::SwarmRead, Scope::Admin]).await;
    let theirs = follow(&skep, &key, "").await;
    let begun = theirs.last.clone();
    let own = skep.simple("own").await;
    skep.boots(2).await;
    let made = skep.bare(Method::POST, "/api/tickets").bearer_auth(&key).json(&json!({"title": "theirs"}));
    let made: serde_json::Value = made.send().await.unwrap().json().await.unwrap();
    for mut follower in [theirs, follow(&skep, &key, &format!("?after={begun}")).await] {
        let all = follower.take(2).await;
        assert_eq!(kinds(&all), ["ticket.created", "ticket.ready"]);
        assert_eq!(all[1].data["ticket"], made["id"]);
    }
    let unknown = skep_api::TicketId::generate().to_string();
    for query in ["", &format!("&after={begun}")] {
        let mut messages = Vec::new();
        for id in [&own, &unknown] {
            let request =
                skep.bare(Method::GET, &format!("/api/events?ticket={id}{query}")).bearer_auth(&key);
            let found = refused(request.send().await.unwrap()).await;
            assert_eq!((found.status, found.code.as_str()), (404, "unknown_ticket"));
            messages.push(found.message.replace(id.as_str(), "X"));
        }
        assert_eq!(messages[0], messages[1]);
    }
}

#[tokio::test]
async fn one_ticket_is_followed_from_its_record_on() {
    let skep = Skep::start().await;
    let id = skep.simple("a").await;
    skep.simple("another").await;
    let mut follower = skep.follow(&format!("?ticket={id}")).await;
    let first = follower.next().await.unwrap();
    assert_eq!((first.kind.as_str(), &first.data["ticket"]), ("ticket.current", &skep.record(&id).await));
    skep.simple("a third").await;
    skep.changed(&id, json!({"status": "in_progress"})).await;
    skep.changed(&id, json!({"status": "completed"})).await;
    let all = follower.take(2).await;
    assert_eq!(kinds(&all), ["ticket.claimed", "ticket.completed"]);
    // A client that reconnects already has the record, also where the ticket has been deleted since.
    let deleted = skep.request(Method::DELETE, &format!("/api/tickets/{id}")).send().await.unwrap();
    assert_eq!(deleted.status(), 200);
    let mut again = skep.follow(&format!("?ticket={id}&after={}", first.id)).await;
    assert_eq!(kinds(&again.take(3).await), ["ticket.claimed", "ticket.completed", "ticket.deleted"]);
    let gone = refused(skep.get(&format!("/api/events?ticket={id}")).await).await;
    assert_eq!(gone.code, "unknown_ticket");
}
