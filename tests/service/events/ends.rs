//! The end of a stream: by a revoked key, by the stop of the server, by a client that does not read.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use serde_json::json;
use skep_api::Scope;
use skep_server::Limits;
use skep_store::RevokeKey;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{Follower, TIMEOUT, kinds, sequence};
use crate::{
    clock::advance_clock,
    harness::{Options, Skep, eventually},
    tickets::done,
};

#[tokio::test]
async fn a_key_that_is_revoked_sees_nothing_more() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[Scope::TicketsRead]).await;
    let mut follower = Follower::of(skep.bare(Method::GET, "/api/events").bearer_auth(&key)).await;
    let mut other = skep.follow("?types=ticket.*").await;
    let revoke =
        RevokeKey { account: skep.account.id, id: record.key.id, at: Timestamp::now(), request_id: None };
    skep.store.revoke_key(revoke).await.unwrap();
    let last = follower.next().await.unwrap();
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("token_expired")));
    assert_eq!(follower.next().await, None);
    skep.simple("a").await;
    assert_eq!(other.next().await.unwrap().kind, "ticket.created");
}

#[tokio::test]
async fn a_stream_that_does_not_follow_ends_after_the_events_that_exist() {
    let skep = Skep::start().await;
    let begun = skep.follow("").await.last;
    skep.boots(2).await;
    let id = skep.simple("a").await;
    for (types, expected) in [
        ("ticket.*", &["ticket.created", "ticket.ready"][..]),
        // The newest event is of another type.
        ("vm.*", &["vm.booted", "vm.booted"]),
    ] {
        let mut past = skep.follow(&format!("?types={types}&after={begun}&follow=false")).await;
        let mut all = Vec::new();
        while let Some(event) = past.next().await {
            all.push(event);
        }
        assert_eq!(kinds(&all), expected, "{types}");
    }
    // A stream that waits for a new event sends a second comment. On a loaded machine, one that does not wait may too.
    eventually("a stream that ends without a wait for a new event", async || {
        let mut past = skep.follow(&format!("?types=vm.ended&after={begun}&follow=false")).await;
        assert_eq!(past.next().await, None);
        past.comments == 1
    })
    .await;
    assert_eq!(skep.follow("?follow=false").await.next().await, None, "nothing is past");
    let mut record = skep.follow(&format!("?ticket={id}&follow=false")).await;
    assert_eq!(record.next().await.unwrap().kind, "ticket.current");
    assert_eq!(record.next().await, None);
}

#[tokio::test]
async fn a_server_that_ends_says_so_at_once() {
    let mut skep = Skep::start().await;
    let mut follower = skep.follow("").await;
    skep.stop();
    let last = follower.next().await.unwrap();
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("shutting_down")));
    assert_eq!(follower.next().await, None);
    timeout(TIMEOUT, skep.serving.take().unwrap()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_can_resume() {
    // Longer than a client that reads has to wait on a loaded machine. Others must not end the connection.
    let (write_timeout, hour) = (Duration::from_secs(8), Duration::from_secs(3_600));
    let limits = Limits { write_timeout, header_timeout: hour, ..Options::default().limits };
    let skep = Skep::start_with(Options { limits, ..Options::default() }).await;
    let begun = skep.follow("").await.last;
    let mut idle = TcpStream::connect(skep.address).await.unwrap();
    let head = format!(
        "GET /api/events?types=ticket.created&after={begun} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        skep.admin
    );
    idle.write_all(head.as_bytes()).await.unwrap();
    // More than the buffers of a connection hold.
    let description = "x".repeat(60_000);
    let tickets: Vec<_> = (0..250).map(|_| json!({"title": "a", "description": description})).collect();
    done(skep.call(Method::POST, "/api/tickets/batch", &json!({"tickets": tickets})), 201).await;
    // A client that reads gets all events meanwhile.
    let mut reader = skep.follow(&format!("?types=ticket.created&after={begun}")).await;
    let all = reader.take(250).await;
    // Once the server has closed the connection, sending fails or is ignored.
    eventually("the end of the connection", async || {
        advance_clock(Duration::from_secs(1)).await;
        idle.write_all(b"x").await.is_err()
    })
    .await;
    let (mut got, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    while let Ok(count @ 1..) = timeout(TIMEOUT, idle.read(&mut piece)).await.unwrap() {
        got.extend_from_slice(&piece[..count]);
    }
    let got = String::from_utf8(got).unwrap();
    let seen = got.lines().filter_map(|line| line.strip_prefix("id: "));
    let seen: Vec<&str> = seen.filter(|id| sequence(id) > sequence(&begun)).collect();
    assert!(!seen.is_empty() && seen.len() < 250, "{} of 250", seen.len());
    assert!(seen.iter().zip(&all).all(|(id, event)| *id == event.id), "in order, from the first on");
    // The last event may be incomplete; the one before it is complete.
    let place = seen[seen.len() - 2];
    let mut again = skep.follow(&format!("?types=ticket.created&after={place}")).await;
    let left = again.take(250 - (seen.len() - 1)).await;
    assert_eq!(left, all[seen.len() - 1..]);
}
