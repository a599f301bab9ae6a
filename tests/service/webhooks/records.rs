//! Records of webhooks are created, listed, changed and deleted, and never contain a secret.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};
use skep_api::Scope;

use super::{change, deliveries, id, quick, receiver::Receiver, secret, start, ticket, webhook};
use crate::harness::{Skep, refused};

const URL: &str = "https://hooks.example.com/skep";

#[tokio::test]
async fn a_webhook_is_kept_as_it_was_made_and_its_secret_shown_once() {
    let skep = Skep::start().await;
    let body = json!({"url": URL, "types": ["ticket.*", "vm.ended"], "description": "süß"});
    let made: Value = skep.post("/api/webhooks", &body.to_string()).await.json().await.unwrap();
    assert!(secret(&made).starts_with("whsec_"), "{made}");
    let mut record = made.clone();
    record.as_object_mut().unwrap().remove("secret");
    for (field, value) in body.as_object().unwrap() {
        assert_eq!(&record[field], value);
    }
    assert_eq!((&record["enabled"], &record["disabled_reason"]), (&json!(true), &Value::Null));
    let read: Value = skep.get(&format!("/api/webhooks/{}", id(&made))).await.json().await.unwrap();
    assert_eq!(read, record);
    let list: Value = skep.get("/api/webhooks").await.json().await.unwrap();
    assert_eq!(list, json!({"webhooks": [record], "next_cursor": null}));
    let changed = change(&skep, &made, json!({"types": ["key.*"], "description": null})).await;
    assert_eq!((&changed["types"], &changed["description"]), (&json!(["key.*"]), &Value::Null));
    assert_eq!((&changed["url"], &changed["id"]), (&record["url"], &record["id"]));
}

#[tokio::test]
async fn secrets_are_encrypted_at_rest() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    let rotated = skep.post(&format!("/api/webhooks/{}/rotate", id(&made)), "").await;
    let rotated: Value = rotated.json().await.unwrap();
    ticket(&skep, "written").await;
    receiver.wait(1).await;
    let data = skep.end().await;
    let mut looked_at = 0;
    for secret in [secret(&made), secret(&rotated)] {
        let text = secret.strip_prefix("whsec_").unwrap();
        let bytes = data_encoding::BASE64.decode(text.as_bytes()).unwrap();
        for file in fs::read_dir(data.path()).unwrap() {
            let file = file.unwrap().path();
            let Ok(content) = fs::read(&file) else { continue };
            let holds = |part: &[u8]| content.windows(part.len()).any(|window| window == part);
            assert!(!holds(&bytes) && !holds(text.as_bytes()), "{}", file.display());
            looked_at += usize::from(holds(receiver.url().as_bytes()));
        }
    }
    assert!(looked_at >= 2, "the control: what is not secret is found");
}

#[tokio::test]
async fn pages_hold_every_webhook_and_delivery_once_newest_first() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    for _ in 0..7 {
        webhook(&skep, URL, &["vm.booted"]).await;
    }
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    for number in 0..7 {
        ticket(&skep, &format!("{number}")).await;
    }
    receiver.wait(7).await;
    for (path, field, count) in [
        ("/api/webhooks".to_owned(), "webhooks", 8),
        (format!("/api/webhooks/{}/deliveries", id(&made)), "deliveries", 7),
    ] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page: Value = skep.get(&format!("{path}?limit=3{cursor}")).await.json().await.unwrap();
            let ids = page[field].as_array().unwrap().iter().map(|one| id(one).to_owned());
            seen.extend(ids);
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let mut ordered = seen.clone();
        ordered.sort_unstable_by(|one, other| other.cmp(one));
        ordered.dedup();
        assert_eq!((seen.len(), &seen), (count, &ordered), "{path}");
    }
    // In the order of events, even within a millisecond.
    let found = deliveries(&skep, &made).await;
    let sequence =
        |one: &Value| one["event"].as_str().unwrap().rsplit('_').next().unwrap().parse::<u64>().unwrap();
    assert!(found.windows(2).all(|pair| sequence(&pair[0]) > sequence(&pair[1])), "{found:#?}");
}

#[tokio::test]
async fn a_deleted_webhook_is_gone_with_its_deliveries() {
    let (skep, receiver) = (start(quick()).await, Receiver::start().await);
    let made = webhook(&skep, &receiver.url(), &["ticket.created"]).await;
    ticket(&skep, "sent").await;
    receiver.wait(1).await;
    let path = format!("/api/webhooks/{}", id(&made));
    let answer = skep.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({"id": id(&made), "deleted": true}));
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::DELETE, path.clone()),
        (Method::GET, format!("{path}/deliveries")),
    ] {
        let answer = refused(skep.request(method, &path).send().await.unwrap()).await;
        assert_eq!((answer.status, answer.code.as_str()), (404, "unknown_webhook"), "{path}");
    }
    let other = Receiver::start().await;
    webhook(&skep, &other.url(), &["ticket.created"]).await;
    ticket(&skep, "not sent").await;
    other.wait(1).await;
    assert_eq!(receiver.seen().len(), 1);
}

#[tokio::test]
async fn a_webhook_cannot_send_events_that_its_creator_may_not_read() {
    let skep = Skep::start().await;
    let (key, _) = skep.key(&[Scope::Admin]).await;
    let ask = async |method: Method, path: &str, body: Value| {
        skep.bare(method, path).bearer_auth(&key).json(&body).send().await.unwrap()
    };
    let made = ask(Method::POST, "/api/webhooks", json!({"url": URL})).await;
    assert_eq!(made.json::<Value>().await.unwrap()["types"], json!(["key.*"]));
    let more = webhook(&skep, URL, &["ticket.*"]).await;
    let path = format!("/api/webhooks/{}", id(&more));
    for (method, path, body) in [
        (Method::POST, "/api/webhooks".to_owned(), json!({"url": URL, "types": ["key.*", "ticket.failed"]})),
        (Method::PATCH, path.clone(), json!({"types": ["vm.*"]})),
        (Method::PATCH, path.clone(), json!({"url": "https://elsewhere.example/"})),
        (Method::POST, format!("{path}/rotate"), json!({})),
    ] {
        let answer = refused(ask(method.clone(), &path, body.clone()).await).await;
        assert_eq!((answer.status, answer.code.as_str()), (403, "scope_missing"), "{method} {path} {body}");
    }
    let off = ask(Method::PATCH, &path, json!({"enabled": false})).await;
    assert_eq!(off.status(), 200, "whoever administers the account may switch it off");
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_name() {
    let skep = Skep::start().await;
    let made = webhook(&skep, URL, &["ticket.*"]).await;
    let path = format!("/api/webhooks/{}", id(&made));
    for (method, path, body, named) in [
        (Method::POST, "/api/webhooks", json!({}), "`url`"),
        (Method::POST, "/api/webhooks", json!({"url": URL, "types": []}), "`types`"),
        (Method::POST, "/api/webhooks", json!({"url": URL, "types": ["ticket.done"]}), "`ticket.done`"),
        (Method::POST, "/api/webhooks", json!({"url": URL, "types": ["*"]}), "`*`"),
        (Method::POST, "/api/webhooks", json!({"url": URL, "secret": "x"}), "`secret`"),
        (Method::POST, "/api/webhooks", json!({"url": URL, "description": "a\nb"}), "`description`"),
        (Method::PATCH, path.as_str(), json!({"url": null}), "`url`"),
        (Method::POST, &format!("{path}/rotate"), json!({"overlap_ms": 604_800_001}), "`overlap_ms`"),
        (Method::POST, &format!("{path}/test"), json!({"x": 1}), "`x`"),
    ] {
        let answer = refused(skep.request(method, path).json(&body).send().await.unwrap()).await;
        assert!(answer.status == 400 && answer.message.contains(named), "{path} {body}: {}", answer.message);
    }
    for _ in 1..100 {
        webhook(&skep, URL, &["vm.booted"]).await;
    }
    let answer = refused(skep.post("/api/webhooks", &json!({"url": URL}).to_string()).await).await;
    assert_eq!((answer.status, answer.code.as_str()), (409, "quota_exceeded"));
}

#[tokio::test]
async fn changes_are_in_the_audit_without_their_secrets() {
    let skep = Skep::start().await;
    let made = webhook(&skep, URL, &["ticket.*"]).await;
    let path = format!("/api/webhooks/{}", id(&made));
    change(&skep, &made, json!({"enabled": false})).await;
    let rotated: Value = skep.post(&format!("{path}/rotate"), "").await.json().await.unwrap();
    assert_eq!(skep.request(Method::DELETE, &path).send().await.unwrap().status(), 200);
    let expected = ["create_webhook", "change_webhook", "rotate_webhook", "delete_webhook"];
    let mut entries = Vec::new();
    for _ in 0..3_000 {
        let list: Value = skep.get("/api/audit").await.json().await.unwrap();
        entries = list["entries"].as_array().unwrap().clone();
        if entries.len() >= expected.len() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for action in expected {
        let found = entries.iter().find(|entry| entry["action"] == action);
        assert_eq!(
            found.unwrap_or_else(|| panic!("{action}: {entries:#?}"))["resource"],
            made["id"],
            "{action}"
        );
    }
    let text = format!("{entries:?}");
    assert!(!text.contains(&secret(&made)[6..]) && !text.contains(&secret(&rotated)[6..]));
}
