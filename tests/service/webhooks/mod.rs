//! Webhooks, with real endpoints on loopback addresses that the operator allows.

mod addresses;
mod attempts;
mod records;
mod sending;

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use skep_server::{RetryPolicy, WebhookSettings};

use crate::harness::{
    Options, Skep,
    receiver::{self, PATIENCE},
};

/// Short back-offs for tests, without a final failure.
fn quick() -> RetryPolicy {
    RetryPolicy {
        delays: vec![Duration::from_millis(10); 100],
        timeout: PATIENCE * 2,
        ..RetryPolicy::default()
    }
}

/// Like the above, but the second attempt comes after the end of the test.
fn slow() -> RetryPolicy {
    RetryPolicy { delays: vec![Duration::from_secs(3_600)], ..quick() }
}

fn options(allow: &[&str], pace: RetryPolicy) -> Options {
    let allow = allow.iter().map(|&entry| entry.to_owned()).collect();
    Options {
        webhooks: WebhookSettings { allow, retries: pace, ..WebhookSettings::default() },
        ..Options::default()
    }
}

/// A server whose webhooks may reach loopback addresses.
async fn start(pace: RetryPolicy) -> Skep {
    Skep::start_with(options(&["127.0.0.0/8"], pace)).await
}

/// Creates a webhook, and returns it with its secret.
async fn webhook(skep: &Skep, url: &str, types: &[&str]) -> Value {
    let made = skep.post("/api/webhooks", &json!({"url": url, "types": types}).to_string()).await;
    let status = made.status();
    let made: Value = made.json().await.unwrap();
    assert_eq!(status, 201, "{made}");
    made
}

fn id(record: &Value) -> &str {
    record["id"].as_str().unwrap()
}

fn secret(record: &Value) -> &str {
    record["secret"].as_str().unwrap()
}

/// Creates a ticket, which causes `ticket.created` and `ticket.ready`.
async fn ticket(skep: &Skep, title: &str) -> String {
    let made = skep.post("/api/tickets", &json!({"title": title}).to_string()).await;
    id(&made.json::<Value>().await.unwrap()).to_owned()
}

async fn change(skep: &Skep, webhook: &Value, change: Value) -> Value {
    let request = skep.request(Method::PATCH, &format!("/api/webhooks/{}", id(webhook))).json(&change);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

async fn deliveries(skep: &Skep, webhook: &Value) -> Vec<Value> {
    let list: Value =
        skep.get(&format!("/api/webhooks/{}/deliveries", id(webhook))).await.json().await.unwrap();
    list["deliveries"].as_array().unwrap_or_else(|| panic!("{list}")).clone()
}

/// Waits until the deliveries of a webhook meet a condition, and returns them.
async fn until(skep: &Skep, webhook: &Value, good: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let found = deliveries(skep, webhook).await;
        if good(&found) {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "{found:#?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether there are this many deliveries, all in this state.
fn all(count: usize, state: &'static str) -> impl Fn(&[Value]) -> bool {
    move |found| found.len() == count && found.iter().all(|delivery| delivery["state"] == state)
}

fn attempts(delivery: &Value) -> &[Value] {
    delivery["attempts"].as_array().unwrap()
}

fn shared<T>(value: T) -> Arc<T> {
    Arc::new(value)
}
