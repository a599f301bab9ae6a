//! The ticket operations over HTTP.

mod claims;
mod dependencies;
mod faults;
mod idempotency;
mod labels;
mod leases;
mod lifecycle;
mod lists;
mod logs;
pub(crate) mod vms;

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::harness::{Refused, Skep, refused};

/// Calls about tickets, with the admin key.
impl Skep {
    pub(super) fn call(&self, method: Method, path: &str, body: &Value) -> RequestBuilder {
        self.request(method, path).json(body)
    }

    /// Creates a ticket, and returns its id.
    pub(super) async fn ticket(&self, body: Value) -> String {
        let made = done(self.call(Method::POST, "/api/tickets", &body), 201).await;
        made["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn simple(&self, title: &str) -> String {
        self.ticket(json!({"title": title})).await
    }

    pub(super) async fn patch(&self, id: &str, body: Value) -> Response {
        self.call(Method::PATCH, &format!("/api/tickets/{id}"), &body).send().await.unwrap()
    }

    /// Sends a change, which must succeed.
    pub(super) async fn changed(&self, id: &str, body: Value) -> Value {
        done(self.call(Method::PATCH, &format!("/api/tickets/{id}"), &body), 200).await
    }

    /// Sends a change, which must be refused with 409.
    pub(super) async fn conflict(&self, id: &str, body: Value, code: &str) -> String {
        let Refused { status, code: found, message } = refused(self.patch(id, body.clone()).await).await;
        assert_eq!((status, found.as_str()), (409, code), "{body}: {message}");
        message
    }

    pub(super) async fn read(&self, path: &str) -> Value {
        done(self.request(Method::GET, path), 200).await
    }

    pub(super) async fn record(&self, id: &str) -> Value {
        self.read(&format!("/api/tickets/{id}")).await
    }

    /// The types of a ticket's events.
    pub(super) async fn events(&self, id: &str) -> Vec<String> {
        let history = self.read(&format!("/api/tickets/{id}/history?limit=1000")).await;
        let events = history["events"].as_array().unwrap().iter();
        events.map(|event| event["type"].as_str().unwrap().trim_start_matches("ticket.").to_owned()).collect()
    }
}

/// The answer of a call that succeeds.
pub(super) async fn done(request: RequestBuilder, status: u16) -> Value {
    let answer = request.send().await.unwrap();
    let found = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(found, status, "{text}");
    serde_json::from_str(&text).unwrap()
}
