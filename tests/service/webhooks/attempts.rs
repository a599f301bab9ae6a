//! Endpoints that fail in different ways.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};
use skep_server::RetryPolicy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
    time::timeout,
};

use super::{
    PATIENCE, all, attempts, deliveries, id, options, quick,
    receiver::{Receiver, Reply},
    secret, slow, start, ticket, until, webhook,
};
use crate::{access::tenant, harness::Skep};

#[tokio::test]
async fn a_failed_delivery_is_retried_as_the_same_message() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    receiver.answers([Reply::status(500), Reply::status(404), Reply::header(302, "location", "/elsewhere")]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "stubborn").await;
    let seen = receiver.wait(4).await;
    let same: BTreeSet<_> = seen.iter().map(|seen| (seen.id().to_owned(), seen.body.clone())).collect();
    assert_eq!(same.len(), 1);
    assert!(seen.iter().all(|seen| seen.is_signed_by(secret(&made))));
    let found = until(&skep, &made, all(1, "delivered")).await;
    let statuses: Vec<&Value> = attempts(&found[0]).iter().map(|attempt| &attempt["status"]).collect();
    assert_eq!(statuses, [500, 404, 302, 200]);
    assert_eq!(receiver.seen().len(), 4, "no redirect is followed");
}

#[tokio::test]
async fn a_delivery_that_fails_too_often_is_given_up_until_a_redelivery() {
    let pace = RetryPolicy { delays: vec![Duration::from_millis(1); 2], ..quick() };
    let (skep, receiver) = (start(pace).await, Receiver::start().await);
    receiver.answers(vec![Reply::status(500); 3]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "hopeless").await;
    let found = until(&skep, &made, all(1, "failed")).await;
    assert_eq!(attempts(&found[0]).len(), 3);
    assert_eq!(found[0]["next_attempt_at"], Value::Null);
    let again = format!("/api/webhooks/{}/deliveries/{}/redeliver", id(&made), id(&found[0]));
    let answer: Value = skep.post(&again, "{}").await.json().await.unwrap();
    assert_eq!(answer["id"], found[0]["id"]);
    let found = until(&skep, &made, all(1, "delivered")).await;
    assert_eq!(attempts(&found[0]).len(), 4);
    let ids: BTreeSet<String> = receiver.seen().iter().map(|seen| seen.id().to_owned()).collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn a_hanging_endpoint_does_not_delay_others() {
    // The timeout of the attempt is longer than that of the test.
    let skep = start(slow()).await;
    let (hanging, good) = (Receiver::start().await, Receiver::start().await);
    hanging.answers(vec![Reply::Hang; 100]);
    let stuck = webhook(&skep, &hanging.url(), &["ticket.created"]).await;
    let fine = webhook(&skep, &good.url(), &["ticket.created"]).await;
    for number in 0..30 {
        ticket(&skep, &format!("{number}")).await;
    }
    good.wait(30).await;
    until(&skep, &fine, all(30, "delivered")).await;
    hanging.wait(1).await;
    assert!(deliveries(&skep, &stuck).await.iter().all(|delivery| delivery["state"] == "pending"));
    let at_once = hanging.seen().len();
    assert!((1..=8).contains(&at_once), "{at_once} requests wait for an answer");
}

/// Creates an account with a webhook, and tickets that cause deliveries.
async fn account_with_deliveries(skep: &Skep, name: &str, url: &str, tickets: u32) {
    let (_, key) = tenant(skep, name).await;
    let post = async |path: &str, body: Value| {
        let made = skep.bare(Method::POST, path).bearer_auth(&key).json(&body).send().await.unwrap();
        assert_eq!(made.status(), 201, "{path}");
    };
    post("/api/webhooks", json!({"url": url, "types": ["ticket.created"]})).await;
    for number in 0..tickets {
        post("/api/tickets", json!({"title": format!("{number}")})).await;
    }
}

#[tokio::test]
async fn hanging_endpoints_take_sixteen_attempts_of_their_account_and_none_of_others() {
    let skep = start(slow()).await;
    let (hanging, good, hanging_too) =
        (Receiver::start().await, Receiver::start().await, Receiver::start().await);
    for endpoint in [&hanging, &hanging_too] {
        endpoint.answers(vec![Reply::Hang; 300]);
    }
    // Three webhooks of at most eight attempts each.
    for _ in 0..3 {
        webhook(&skep, &hanging.url(), &["ticket.created"]).await;
    }
    for number in 0..20 {
        ticket(&skep, &format!("{number}")).await;
    }
    hanging.wait(16).await;
    account_with_deliveries(&skep, "acme", &good.url(), 1).await;
    good.wait(1).await;
    // The control: eight attempts of another account begin, so the server could have begun more of the first account.
    account_with_deliveries(&skep, "other", &hanging_too.url(), 8).await;
    hanging_too.wait(8).await;
    assert_eq!(hanging.seen().len(), 16);
}

/// An endpoint that answers its first request without an end, until the server closes the connection. The channel then
/// has the number of bytes that were written.
async fn endless_endpoint() -> (String, mpsc::UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (written_sender, written_receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
        }
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        let mut written = 0;
        while stream.write_all(chunk.as_bytes()).await.is_ok() {
            written += chunk.len();
        }
        written_sender.send(written).unwrap();
    });
    (url, written_receiver)
}

#[tokio::test]
async fn an_answer_without_an_end_is_read_no_further() {
    // The timeout of the attempt is longer than that of the test.
    let skep = start(slow()).await;
    let (url, mut written) = endless_endpoint().await;
    let made = webhook(&skep, &url, &["ticket.created"]).await;
    ticket(&skep, "endless").await;
    let found = until(&skep, &made, all(1, "delivered")).await;
    assert_eq!(attempts(&found[0])[0]["answer"], "x".repeat(1024));
    let written = timeout(PATIENCE, written.recv()).await.unwrap().unwrap();
    // The endpoint also fills the buffers of both sockets.
    assert!((64 << 10..32 << 20).contains(&written), "{written} bytes were sent");
}

#[tokio::test]
async fn an_endpoint_has_so_long_to_answer() {
    let pace = RetryPolicy { timeout: Duration::from_millis(200), ..quick() };
    let (skep, receiver) = (start(pace).await, Receiver::start().await);
    receiver.answers([Reply::Hang]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "late").await;
    let found = until(&skep, &made, all(1, "delivered")).await;
    let first = &attempts(&found[0])[0];
    assert_eq!((&first["status"], &first["answer"]), (&Value::Null, &Value::Null));
    assert!(first["error"].as_str().unwrap().contains("within 200 ms"), "{first}");
}

#[tokio::test]
async fn of_a_long_answer_only_the_beginning_is_kept() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    receiver.answers([Reply::With(200, Vec::new(), "x".repeat(8 << 20))]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "talkative").await;
    let found = until(&skep, &made, all(1, "delivered")).await;
    assert_eq!(attempts(&found[0])[0]["answer"], "x".repeat(1024));
}

#[tokio::test]
async fn an_endpoint_that_is_gone_disables_its_webhook() {
    let skep = start(quick()).await;
    let (gone, good) = (Receiver::start().await, Receiver::start().await);
    gone.answers([Reply::status(410)]);
    let made = webhook(&skep, &gone.url(), &["ticket.created"]).await;
    webhook(&skep, &good.url(), &["ticket.created"]).await;
    ticket(&skep, "the last one").await;
    let found = until(&skep, &made, all(1, "failed")).await;
    assert_eq!(attempts(&found[0]).len(), 1);
    let record: Value = skep.get(&format!("/api/webhooks/{}", id(&made))).await.json().await.unwrap();
    assert_eq!((&record["enabled"], &record["disabled_reason"]), (&json!(false), &json!("gone")));
    ticket(&skep, "one more").await;
    good.wait(2).await;
    assert_eq!((gone.seen().len(), deliveries(&skep, &made).await.len()), (1, 1));
}

#[tokio::test]
async fn an_endpoint_that_takes_nothing_for_long_disables_its_webhook() {
    let pace = RetryPolicy { disable_after: jiff::SignedDuration::from_millis(50), ..quick() };
    let (skep, receiver) = (start(pace).await, Receiver::start().await);
    receiver.answers(vec![Reply::status(500); 1_000]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "hopeless").await;
    let path = format!("/api/webhooks/{}", id(&made));
    let mut record = Value::Null;
    for _ in 0..6_000 {
        record = skep.get(&path).await.json().await.unwrap();
        if record["enabled"] == false {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(record["disabled_reason"], "failing", "{record}");
    assert_eq!(deliveries(&skep, &made).await[0]["state"], "pending", "it goes on once it is enabled again");
}

#[tokio::test]
async fn an_endpoint_that_asks_to_be_left_alone_is() {
    let skep = start(quick()).await;
    let (busy, good) = (Receiver::start().await, Receiver::start().await);
    busy.answers([Reply::header(503, "retry-after", "3600")]);
    let made = webhook(&skep, &busy.url(), &["ticket.created"]).await;
    webhook(&skep, &good.url(), &["ticket.created"]).await;
    ticket(&skep, "asked to wait").await;
    let once = |found: &[Value]| found.len() == 1 && attempts(&found[0]).len() == 1;
    let found = until(&skep, &made, once).await;
    let next: Timestamp = found[0]["next_attempt_at"].as_str().unwrap().parse().unwrap();
    let ahead = next.duration_since(Timestamp::now()).as_secs();
    // The delay that the endpoint asked for, plus up to a fifth.
    assert!((3_500..=4_320).contains(&ahead), "{ahead} s");
    // Later events wait as well.
    ticket(&skep, "waits with it").await;
    good.wait(2).await;
    until(&skep, &made, |found| found.len() == 2).await;
    ticket(&skep, "waits too").await;
    good.wait(3).await;
    assert_eq!(busy.seen().len(), 1);
    // A manual redelivery is sent at once.
    let again = format!("/api/webhooks/{}/deliveries/{}/redeliver", id(&made), id(&found[0]));
    assert_eq!(skep.post(&again, "{}").await.status(), 202);
    busy.wait(3).await;
    until(&skep, &made, all(3, "delivered")).await;
}

#[tokio::test]
async fn retries_survive_a_restart() {
    let receiver = Receiver::start().await;
    // The server is to stop before the second attempt.
    let pace = RetryPolicy { delays: vec![Duration::from_secs(5); 10], ..quick() };
    let skep = start(pace.clone()).await;
    receiver.answers([Reply::status(500)]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "patient").await;
    until(&skep, &made, |found| found.len() == 1 && attempts(&found[0]).len() == 1).await;
    let data = skep.end().await;
    let before = receiver.seen().len();
    let skep = Skep::start_on(data, options(&["127.0.0.1"], pace)).await;
    let found = until(&skep, &made, all(1, "delivered")).await;
    assert_eq!(attempts(&found[0]).len(), receiver.seen().len());
    assert!(receiver.seen().len() > before || before == 2);
    let ids: BTreeSet<String> = receiver.seen().iter().map(|seen| seen.id().to_owned()).collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn deliveries_in_progress_at_a_stop_are_sent_again() {
    let receiver = Receiver::start().await;
    let skep = start(slow()).await;
    receiver.answers([Reply::Hang]);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "cut off").await;
    receiver.wait(1).await;
    let data = skep.end().await;
    let skep = Skep::start_on(data, options(&["127.0.0.1"], slow())).await;
    let seen = receiver.wait(2).await;
    assert_eq!(seen[0].id(), seen[1].id());
    until(&skep, &made, all(1, "delivered")).await;
}

#[tokio::test]
async fn a_flood_is_sent_whole_and_each_event_once() {
    let (skep, receiver) = (start(slow()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    // More than the server has waiting in its queue at a time.
    for part in 0..3 {
        let tickets: Vec<Value> = (0..400).map(|n| json!({"title": format!("{part} {n}")})).collect();
        let answer = skep.post("/api/tickets/batch", &json!({"tickets": tickets}).to_string()).await;
        assert_eq!(answer.status(), 201);
    }
    // Each attempt is written to the disk, so a slow one needs longer for all of them than a wait may take.
    for count in (100..1_200).step_by(100) {
        receiver.wait(count).await;
    }
    let seen = receiver.wait(1_200).await;
    let ids: BTreeSet<&str> = seen.iter().map(|seen| seen.id()).collect();
    assert_eq!((ids.len(), seen.len()), (1_200, 1_200));
    assert!(seen.iter().all(|seen| seen.is_signed_by(secret(&made))));
}
