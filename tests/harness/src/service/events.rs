//! Clients of the event stream.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::time::timeout;

use super::Skep;

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: String,
    pub kind: String,
    pub data: Value,
}

/// A client of an event stream.
pub struct Follower {
    pub answer: Response,
    pub buffer: String,
    /// The id to resume from, and the received comments.
    pub last: String,
    pub comments: usize,
}

impl Follower {
    pub async fn of(request: RequestBuilder) -> Self {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let last = answer.headers()["skep-event-id"].to_str().unwrap().to_owned();
        Self { answer, buffer: String::new(), last, comments: 0 }
    }

    /// The next event; `None` where the stream ended.
    pub async fn next(&mut self) -> Option<Event> {
        timeout(TIMEOUT, self.read()).await.unwrap()
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            let Some(end) = self.buffer.find("\n\n") else {
                let chunk = self.answer.chunk().await.ok().flatten()?;
                self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
                continue;
            };
            let block: String = self.buffer.drain(..end + 2).collect();
            let field = |name: &str| {
                let value = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                value.map(str::to_owned)
            };
            if let Some(id) = field("id") {
                self.last = id;
            }
            let Some(data) = field("data") else {
                assert!(block.starts_with(": "), "{block:?}");
                self.comments += 1;
                continue;
            };
            let data: Value = serde_json::from_str(&data).unwrap();
            let (id, kind) = (field("id").unwrap_or_default(), field("event").unwrap());
            return Some(Event { id, kind, data });
        }
    }

    /// Reads this many events.
    pub async fn take(&mut self, count: usize) -> Vec<Event> {
        let mut all = Vec::new();
        while all.len() < count {
            let next = self.next().await;
            all.push(next.unwrap_or_else(|| panic!("the stream ended after {all:?}")));
        }
        all
    }
}

impl Skep {
    /// Follows with the admin key.
    pub async fn follow(&self, query: &str) -> Follower {
        Follower::of(self.request(Method::GET, &format!("/api/events{query}"))).await
    }
}
