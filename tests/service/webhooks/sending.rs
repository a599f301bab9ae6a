//! The content, the recipients and the signatures of webhook requests.

use serde_json::{Value, json};
use skep_accounts::scopes_of;
use skep_api::Role;

use super::{
    all, change, deliveries, id, quick, receiver::Receiver, secret, slow, start, ticket, until, webhook,
};
use crate::harness::Skep;

#[tokio::test]
async fn an_event_is_sent_as_the_standard_says() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    let request = skep.request(reqwest::Method::POST, "/api/tickets").header("x-request-id", "mine-1");
    let made_ticket = request.json(&json!({"title": "süß"})).send().await.unwrap();
    let made_ticket: Value = made_ticket.json().await.unwrap();
    let seen = receiver.wait(1).await;
    let [seen] = seen.as_slice() else { panic!("{seen:#?}") };
    assert!(seen.is_signed_by(secret(&made)));
    assert!(!seen.is_signed_by("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="));
    assert_eq!(seen.headers["content-type"], "application/json");
    let age = jiff::Timestamp::now().as_second()
        - seen.headers["webhook-timestamp"].to_str().unwrap().parse::<i64>().unwrap();
    assert!((0..=60).contains(&age), "{age}");
    let message = seen.json();
    let fields: Vec<&String> = message.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["data", "timestamp", "type"]);
    assert_eq!(message["type"], "ticket.created");
    assert_eq!(message["data"]["id"], seen.id());
    assert_eq!(message["data"]["at"], message["timestamp"]);
    assert_eq!(message["data"]["request_id"], "mine-1");
    assert_eq!(message["data"]["ticket"], made_ticket);
    let found = until(&skep, &made, all(1, "delivered")).await;
    assert_eq!(found[0]["event"], seen.id());
    assert_eq!((&found[0]["type"], &found[0]["next_attempt_at"]), (&json!("ticket.created"), &Value::Null));
    assert_eq!(found[0]["attempts"][0]["status"], 200);
    assert_eq!(found[0]["attempts"][0]["answer"], "body");
    let metrics = skep.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("skep_webhook_attempts_total{outcome=\"delivered\"} 1"), "{metrics}");
}

#[tokio::test]
async fn each_webhook_is_sent_what_it_asked_for_and_nothing_of_others() {
    let skep = start(quick()).await;
    let (tickets, keys, tenants) =
        (Receiver::start().await, Receiver::start().await, Receiver::start().await);
    // The other account has a webhook of its own, for everything.
    let account = skep.post("/api/accounts", r#"{"name": "acme"}"#).await.json::<Value>().await.unwrap();
    let account = id(&account).parse().unwrap();
    let key = skep.key_of(&account, &scopes_of(Role::Admin, "acme")).await;
    let request = skep.bare(reqwest::Method::POST, "/api/webhooks").bearer_auth(&key);
    let made = request.json(&json!({"url": tenants.url()})).send().await.unwrap();
    assert_eq!(made.status(), 201);
    let made: Value = made.json().await.unwrap();
    assert_eq!(made["types"], json!(["key.*", "ticket.*", "template.*", "vm.*"]));
    webhook(&skep, &tickets.url(), &["ticket.created"]).await;
    webhook(&skep, &keys.url(), &["key.*"]).await;
    let own = ticket(&skep, "of default").await;
    assert_eq!(skep.post("/api/keys", r#"{"name": "ci", "role": "agent"}"#).await.status(), 201);
    let other =
        skep.bare(reqwest::Method::POST, "/api/tickets").bearer_auth(&key).json(&json!({"title": "theirs"}));
    let other: Value = other.send().await.unwrap().json().await.unwrap();
    assert_eq!(tickets.wait(1).await[0].json()["data"]["ticket"]["id"], json!(own));
    assert_eq!(keys.wait(1).await[0].json()["data"]["name"], "ci");
    let theirs = tenants.wait(2).await;
    assert_eq!(theirs.iter().filter(|seen| seen.json()["data"]["ticket"]["id"] == other["id"]).count(), 1);
    // A wrong delivery would have arrived by now, because a later one has.
    ticket(&skep, "the last one").await;
    assert_eq!(tickets.wait(2).await.len(), 2);
    assert!(keys.seen().iter().all(|seen| seen.kind() == "key.created") && keys.seen().len() == 1);
    let ids: Vec<Value> = tenants.seen().iter().map(|seen| seen.json()["data"].clone()).collect();
    assert!(ids.iter().all(|data| !data.to_string().contains(&own)), "{ids:#?}");
}

#[tokio::test]
async fn while_a_secret_rotates_both_sign() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    let rotate = async |body: &str| -> Value {
        let answer = skep.post(&format!("/api/webhooks/{}/rotate", id(&made)), body).await;
        assert_eq!(answer.status(), 201);
        answer.json().await.unwrap()
    };
    let second = rotate("{}").await;
    assert_ne!(secret(&second), secret(&made));
    assert!(second["previous_secret_until"].is_string(), "{second}");
    ticket(&skep, "while both are valid").await;
    let seen = receiver.wait(1).await[0].clone();
    assert_eq!(seen.signatures().len(), 2);
    assert!(seen.is_signed_by(secret(&made)) && seen.is_signed_by(secret(&second)));
    let third = rotate(r#"{"overlap_ms": 0}"#).await;
    assert_eq!(third["previous_secret_until"], Value::Null);
    ticket(&skep, "with one secret").await;
    let seen = receiver.wait(2).await[1].clone();
    assert_eq!(seen.signatures().len(), 1);
    assert!(seen.is_signed_by(secret(&third)) && !seen.is_signed_by(secret(&second)));
    // After the overlap, the previous secret no longer signs.
    let fourth = rotate(r#"{"overlap_ms": 1}"#).await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    ticket(&skep, "after the overlap").await;
    let seen = receiver.wait(3).await[2].clone();
    assert_eq!(seen.signatures().len(), 1);
    assert!(seen.is_signed_by(secret(&fourth)) && !seen.is_signed_by(secret(&third)));
}

#[tokio::test]
async fn one_that_is_disabled_is_sent_nothing() {
    let skep = start(quick()).await;
    let (off, on) = (Receiver::start().await, Receiver::start().await);
    let disabled = webhook(&skep, &off.url(), &["ticket.created"]).await;
    webhook(&skep, &on.url(), &["ticket.created"]).await;
    let record = change(&skep, &disabled, json!({"enabled": false})).await;
    assert_eq!((&record["enabled"], &record["disabled_reason"]), (&json!(false), &json!("requested")));
    ticket(&skep, "unseen").await;
    on.wait(1).await;
    assert!(deliveries(&skep, &disabled).await.is_empty());
    for path in ["test", "deliveries/dlv_01jv0000000000000000000000/redeliver"] {
        let refused = skep.post(&format!("/api/webhooks/{}/{path}", id(&disabled)), "{}").await;
        let expected = if path == "test" { "webhook_disabled" } else { "unknown_delivery" };
        assert_eq!(crate::harness::refused(refused).await.code, expected);
    }
    // It gets events from then on.
    let record = change(&skep, &disabled, json!({"enabled": true})).await;
    assert_eq!((&record["enabled"], &record["disabled_at"]), (&json!(true), &Value::Null));
    let seen = ticket(&skep, "seen").await;
    assert_eq!(off.wait(1).await[0].json()["data"]["ticket"]["id"], json!(seen));
    assert_eq!(off.seen().len(), 1);
}

#[tokio::test]
async fn a_test_is_sent_as_any_event_and_a_delivery_again_by_hand() {
    let (skep, receiver) = (start(slow()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["key.*"]).await;
    let answer = skep.post(&format!("/api/webhooks/{}/test", id(&made)), "{}").await;
    assert_eq!(answer.status(), 202);
    let delivery: Value = answer.json().await.unwrap();
    let first = receiver.wait(1).await[0].clone();
    assert_eq!((first.kind().as_str(), first.id()), ("webhook.test", id(&delivery)));
    assert_eq!(first.json()["data"]["webhook"], made["id"]);
    assert!(first.is_signed_by(secret(&made)));
    until(&skep, &made, all(1, "delivered")).await;
    let again = format!("/api/webhooks/{}/deliveries/{}/redeliver", id(&made), id(&delivery));
    assert_eq!(skep.post(&again, "").await.status(), 202);
    let second = receiver.wait(2).await[1].clone();
    assert_eq!((second.id(), &second.body), (first.id(), &first.body));
    let twice = |found: &[Value]| found[0]["attempts"].as_array().unwrap().len() == 2;
    assert_eq!(until(&skep, &made, twice).await.len(), 1);
}

#[tokio::test]
async fn a_secret_whose_key_is_lost_is_not_signed_with() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    let data = skep.end().await;
    std::fs::remove_file(data.path().join("webhooks.key")).unwrap();
    let skep = Skep::start_on(data, super::options(&["127.0.0.1"], quick())).await;
    ticket(&skep, "unsigned").await;
    let tried = |found: &[Value]| found.len() == 1 && !super::attempts(&found[0]).is_empty();
    let found = until(&skep, &made, tried).await;
    assert!(super::attempts(&found[0])[0]["error"].as_str().unwrap().contains("rotate it"), "{found:#?}");
    assert!(receiver.seen().is_empty());
    // The solution that the message names works.
    let rotated = skep.post(&format!("/api/webhooks/{}/rotate", id(&made)), "").await;
    let rotated: Value = rotated.json().await.unwrap();
    assert!(receiver.wait(1).await[0].is_signed_by(secret(&rotated)));
}

#[tokio::test]
async fn events_written_while_no_server_runs_are_sent_after_the_next_start() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["key.created"]).await;
    let (store, account) = (std::sync::Arc::clone(&skep.store), skep.account.id);
    let data = skep.end().await;
    // Written by another process, while no server runs.
    let record = store.create_key(skep_store::NewKey {
        account,
        name: "made meanwhile".to_owned(),
        environment: skep_api::Environment::Test,
        role: None,
        scopes: vec![skep_api::Scope::Admin],
        vm: None,
        hash: skep_accounts::KeySecret::from_random(skep_api::Environment::Test, [9; 32]).hash(),
        prefix: "sk-skep-test-09090909".to_owned(),
        expires_at: None,
        at: jiff::Timestamp::now(),
        request_id: None,
    });
    record.await.unwrap();
    drop(store);
    assert!(receiver.seen().is_empty());
    let skep = Skep::start_on(data, super::options(&["127.0.0.1"], quick())).await;
    // The start has created a key too, and their order is not guaranteed.
    let seen = receiver.wait(2).await;
    assert_eq!(seen.iter().filter(|seen| seen.json()["data"]["name"] == "made meanwhile").count(), 1);
    assert!(seen.iter().all(|seen| seen.is_signed_by(secret(&made))), "the secret outlives the server");
    drop(skep);
}
