//! Calls about tickets.

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use super::{Refused, Skep, done, refused};

/// Calls about tickets, with the admin key.
impl Skep {
    pub fn call(&self, method: Method, path: &str, body: &Value) -> RequestBuilder {
        self.request(method, path).json(body)
    }

    /// Creates a ticket, and returns its id.
    pub async fn ticket(&self, body: Value) -> String {
        let made = done(self.call(Method::POST, "/api/tickets", &body), 201).await;
        made["id"].as_str().unwrap().to_owned()
    }

    pub async fn simple(&self, title: &str) -> String {
        self.ticket(json!({"title": title})).await
    }

    pub async fn patch(&self, id: &str, body: Value) -> Response {
        self.call(Method::PATCH, &format!("/api/tickets/{id}"), &body).send().await.unwrap()
    }

    /// Sends a change, which must succeed.
    pub async fn changed(&self, id: &str, body: Value) -> Value {
        done(self.call(Method::PATCH, &format!("/api/tickets/{id}"), &body), 200).await
    }

    /// Sends a change, which must be refused with 409.
    pub async fn conflict(&self, id: &str, body: Value, code: &str) -> String {
        let Refused { status, code: found, message } = refused(self.patch(id, body.clone()).await).await;
        assert_eq!((status, found.as_str()), (409, code), "{body}: {message}");
        message
    }

    pub async fn read(&self, path: &str) -> Value {
        done(self.request(Method::GET, path), 200).await
    }

    pub async fn record(&self, id: &str) -> Value {
        self.read(&format!("/api/tickets/{id}")).await
    }

    /// The types of a ticket's events.
    pub async fn events(&self, id: &str) -> Vec<String> {
        let history = self.read(&format!("/api/tickets/{id}/history?limit=1000")).await;
        let events = history["events"].as_array().unwrap().iter();
        events.map(|event| event["type"].as_str().unwrap().trim_start_matches("ticket.").to_owned()).collect()
    }
}
