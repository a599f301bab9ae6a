//! The limit of open tickets of an account.

use reqwest::Method;
use serde_json::json;
use skep_api::Scope;

use super::done;
use crate::harness::{Skep, refused};

const MOST: usize = 100_000;
const BATCH: usize = 1_000;

#[tokio::test]
async fn an_account_has_a_limit_of_open_tickets_and_others_go_on() {
    let skep = Skep::start().await;
    let batch = json!({"tickets": vec![json!({"title": "one of many"}); BATCH]});
    let mut last = String::new();
    for _ in 0..MOST / BATCH {
        let made = done(skep.call(Method::POST, "/api/tickets/batch", &batch), 201).await;
        last = made["tickets"][0]["id"].as_str().unwrap().to_owned();
    }
    let one = json!({"title": "one too many"});
    let answer = refused(skep.call(Method::POST, "/api/tickets", &one).send().await.unwrap()).await;
    assert_eq!((answer.status, answer.code.as_str()), (409, "quota_exceeded"));
    for number in ["100000 open", "may have 100000", "1 more"] {
        assert!(answer.message.contains(number), "{number}: {}", answer.message);
    }
    let key = skep.key_of(&skep.other_account("other").await, &[Scope::TicketsWrite]).await;
    done(skep.bare(Method::POST, "/api/tickets").bearer_auth(key).json(&one), 201).await;
    // One that is finished makes room, and cannot be opened again once that is taken.
    skep.changed(&last, json!({"status": "failed"})).await;
    skep.simple("takes the room").await;
    let again = skep.patch(&last, json!({"status": "pending"})).await;
    assert_eq!(refused(again).await.code, "quota_exceeded");
}
