//! The layer that sees every request and notes what has to be known of it.

use std::{mem, sync::Arc};

use axum::{
    RequestExt,
    extract::{MatchedPath, RawPathParams, Request, State},
    middleware::Next,
    response::Response,
};
use http::{Extensions, Method, StatusCode};
use jiff::Timestamp;
use skep_api::{
    AuditId, ErrorCode,
    audit::{AuditEntry, Outcome, UNMATCHED},
};
use skep_store::NewAuditEntry;

use super::{Actions, AuditQueue, queue::log};
use crate::{
    error::{SKEP_ERROR, in_our_shape},
    origin::Origin,
    request::{Arrival, RequestId},
    trail::Trail,
};

/// The longest part of a path that counts as an id.
const LONGEST_ID: usize = 64;

/// What it takes to note a request.
#[derive(Clone)]
pub(crate) struct AuditDesk {
    /// The operations' ids.
    pub actions: Arc<Actions>,
    /// Where entries go.
    pub queue: AuditQueue,
}

/// The layer. It stands inside the one that gives ids, and outside all that may refuse.
pub(crate) async fn note(State(desk): State<AuditDesk>, mut request: Request, next: Next) -> Response {
    let trail = Trail::default();
    request.extensions_mut().insert(trail.clone());
    if let Some(named) = named_by_path(&mut request).await {
        trail.acts_on(named);
    }
    let mut noted = Noted::begin(desk, &request, trail);
    let response = in_our_shape(next.run(request).await);
    noted.finish(response.status(), code(&response)).await;
    response
}

/// What the path names, where that can be an id. What else somebody wrote there may be anything, a key among it, and has no
/// place in the audit.
async fn named_by_path(request: &mut Request) -> Option<String> {
    if !request.extensions().get::<MatchedPath>()?.as_str().contains('{') {
        return None;
    }
    let named = request.extract_parts::<RawPathParams>().await.ok()?;
    let named: Vec<&str> = named.iter().map(|(_, value)| value).collect();
    named.iter().all(|value| is_id(value)).then(|| named.join("/"))
}

fn is_id(text: &str) -> bool {
    (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A request under way. Dropped before its answer, it leaves an entry all the same: what it began may have happened.
struct Noted {
    queue: AuditQueue,
    trail: Trail,
    actions: Arc<Actions>,
    method: Method,
    route: Option<MatchedPath>,
    is_write: bool,
    address: Option<std::net::IpAddr>,
    at: Timestamp,
    request_id: Option<RequestId>,
    state: Stage,
}

/// How far a request is.
enum Stage {
    /// No answer yet.
    UnderWay,
    /// Its entry waits for room.
    Waiting(Box<NewAuditEntry>),
    /// Nothing is left to do.
    Done,
}

impl Noted {
    fn begin(desk: AuditDesk, request: &Request, trail: Trail) -> Self {
        let extensions: &Extensions = request.extensions();
        let method = request.method();
        let arrival = extensions.get::<Arrival>().map(|arrival| arrival.wall);
        Self {
            queue: desk.queue,
            trail,
            actions: desk.actions,
            method: method.clone(),
            route: extensions.get().cloned(),
            is_write: ![Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method),
            address: Origin::of(extensions).address(),
            at: arrival.unwrap_or_else(Timestamp::now),
            request_id: extensions.get().cloned(),
            state: Stage::UnderWay,
        }
    }

    /// Adds the entry, where one is due.
    async fn finish(&mut self, status: StatusCode, code: Option<ErrorCode>) {
        // A GET that opens a WebSocket runs a command, so it counts as a write. Reads have an entry only where they are refused, which
        // a fault of the server is not.
        let is_write = self.is_write || status == StatusCode::SWITCHING_PROTOCOLS;
        if !is_write && !status.is_client_error() {
            self.state = Stage::Done;
            return;
        }
        self.state = Stage::Waiting(Box::new(self.entry(Some(status), code)));
        while let Stage::Waiting(entry) = mem::replace(&mut self.state, Stage::Done) {
            let Err(entry) = self.queue.add(*entry) else { return };
            self.state = Stage::Waiting(entry);
            self.queue.wait_for_room().await;
        }
    }

    fn entry(&self, status: Option<StatusCode>, code: Option<ErrorCode>) -> NewAuditEntry {
        let found = self.trail.found();
        let route = self.route.as_ref().map(MatchedPath::as_str);
        let action = route.and_then(|route| self.actions.id(route, &self.method)).unwrap_or(UNMATCHED);
        let request_id = self.request_id.as_ref().map_or("", RequestId::as_str);
        let entry = AuditEntry {
            at: self.at,
            key: found.key,
            address: self.address,
            action: action.to_owned(),
            resource: found.resource,
            outcome: Outcome { status: status.map(|status| status.as_u16()), code },
            request_id: request_id.to_owned(),
        };
        NewAuditEntry { id: AuditId::generate(), account: found.account, entry }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let entry = match mem::replace(&mut self.state, Stage::Done) {
            Stage::UnderWay if self.is_write => self.entry(None, None),
            Stage::Waiting(entry) => *entry,
            Stage::UnderWay | Stage::Done => return,
        };
        // Nobody is left who could wait for room.
        if let Err(entry) = self.queue.add(entry) {
            log(&entry);
        }
    }
}

fn code(response: &Response) -> Option<ErrorCode> {
    let word = response.headers().get(SKEP_ERROR)?.to_str().ok()?;
    ErrorCode::ALL.iter().copied().find(|code| code.as_str() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_has_no_place_in_an_entry() {
        for good in ["4242", "vm_01jv0000000000000000000000", "key_x", "exec_7"] {
            assert!(is_id(good), "{good}");
        }
        let key = format!("sk-skep-prod-{}", "0".repeat(64));
        for wrong in ["", "ada@example.com", "a b", "../x", "sk-skep-prod-1", &key, &"a".repeat(65), "ü"] {
            assert!(!is_id(wrong), "{wrong}");
        }
    }
}
