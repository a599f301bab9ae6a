//! Requests to a server under test, and their answers.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode, header::HeaderMap};
use serde_json::Value;

use super::Skep;
use crate::{assert_names_no_route, eventually};

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// Checks that the answer is a refusal with this status and code. Returns its message.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> &str {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.headers["skep-error"], code, "{self:?}");
        let body = self.body.as_object().unwrap();
        assert_eq!(body.len(), 2, "{self:?}");
        assert_eq!(body["error"], self.status.canonical_reason().unwrap(), "{self:?}");
        let message = body["message"].as_str().unwrap();
        assert_names_no_route(code, message);
        message
    }

    /// Checks that the answer has this status of success. Returns the body.
    #[track_caller]
    pub fn ok(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self.body
    }
}

impl Skep {
    /// A request with the admin key.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(&self.key)
    }

    /// A request without a key.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).timeout(Duration::from_secs(300))
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    /// The body of the health check, once it succeeds.
    pub async fn health(&self) -> Value {
        self.health_answer(Method::GET).await.ok(200)
    }

    /// The answer of the health check to a request without a key. The check is repeated while it is refused because the store
    /// is unavailable: while the disk stalls, a write takes longer than the check waits for it.
    pub async fn health_answer(&self, method: Method) -> Answer {
        let mut answer = None;
        eventually("an answer of the health check", async || {
            let last = send(self.bare(method.clone(), "/api/health")).await;
            let is_refused = last.headers.get("skep-error").is_some_and(|code| code == "store_unavailable");
            answer = Some(last);
            !is_refused
        })
        .await;
        answer.unwrap()
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).json(body)).await
    }
}

/// Sends a request and reads the complete answer.
pub async fn send(request: RequestBuilder) -> Answer {
    try_send(request).await.unwrap()
}

/// Like [`send`], but the server may end meanwhile.
pub async fn try_send(request: RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Answer { status, headers, body })
}
