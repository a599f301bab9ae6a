//! The middleware that sees every request and adds its audit entry.

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
    audit::{AuditEntry, Outcome, UNMATCHED_ACTION},
};
use skep_store::NewAuditEntry;

use super::{
    Actions, AuditQueue,
    queue::{cost, log},
};
use crate::{
    audit_context::AuditContext,
    door::origin::Origin,
    error::{SKEP_ERROR, normalize_error},
    request::{Arrival, RequestId},
};

/// The longest path parameter that is taken for an id, in bytes.
const MAX_ID_BYTES: usize = 64;

#[derive(Clone)]
pub(crate) struct AuditState {
    pub actions: Arc<Actions>,
    pub queue: AuditQueue,
}

/// The middleware. It runs inside the layer that assigns request ids, and outside every layer that may refuse.
pub(crate) async fn audit_request(
    State(state): State<AuditState>,
    mut request: Request,
    next: Next,
) -> Response {
    let context = AuditContext::default();
    request.extensions_mut().insert(context.clone());
    if let Some(named) = resource_in_path(&mut request).await {
        context.set_resource(named);
    }
    let mut audited = AuditedRequest::begin(state, &request, context);
    let response = normalize_error(next.run(request).await);
    audited.finish(response.status(), error_code(&response)).await;
    response
}

/// The path parameters, if all of them can be ids. Any other text may be anything, even an API key, and must not be
/// written to the audit log.
async fn resource_in_path(request: &mut Request) -> Option<String> {
    if !request.extensions().get::<MatchedPath>()?.as_str().contains('{') {
        return None;
    }
    let named = request.extract_parts::<RawPathParams>().await.ok()?;
    let named: Vec<&str> = named.iter().map(|(_, value)| value).collect();
    named.iter().all(|value| is_id(value)).then(|| named.join("/"))
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A request in progress. If it is dropped before the response, its entry is added nevertheless: the write may have
/// taken effect.
struct AuditedRequest {
    queue: AuditQueue,
    context: AuditContext,
    actions: Arc<Actions>,
    method: Method,
    route: Option<MatchedPath>,
    is_write: bool,
    address: Option<std::net::IpAddr>,
    at: Timestamp,
    request_id: Option<RequestId>,
    state: Stage,
}

enum Stage {
    /// There is no response yet.
    InProgress,
    /// The entry waits for capacity in the queue.
    Waiting(Box<NewAuditEntry>),
    /// The entry was added, or none is needed.
    Done,
}

impl AuditedRequest {
    fn begin(state: AuditState, request: &Request, context: AuditContext) -> Self {
        let extensions: &Extensions = request.extensions();
        let method = request.method();
        let arrival = extensions.get::<Arrival>().map(|arrival| arrival.wall);
        Self {
            queue: state.queue,
            context,
            actions: state.actions,
            method: method.clone(),
            route: extensions.get().cloned(),
            is_write: ![Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method),
            address: Origin::from_extensions(extensions).address(),
            at: arrival.unwrap_or_else(Timestamp::now),
            request_id: extensions.get().cloned(),
            state: Stage::InProgress,
        }
    }

    /// Adds the entry, if the request needs one.
    async fn finish(&mut self, status: StatusCode, code: Option<ErrorCode>) {
        // A GET that opens a WebSocket runs a command, so it counts as a write. A read has an entry only if it was
        // refused; an error of the server is not a refusal.
        let is_write = self.is_write || status == StatusCode::SWITCHING_PROTOCOLS;
        if !is_write && !status.is_client_error() {
            self.state = Stage::Done;
            return;
        }
        self.state = Stage::Waiting(Box::new(self.entry(Some(status), code)));
        while let Stage::Waiting(entry) = mem::replace(&mut self.state, Stage::Done) {
            let Err(entry) = self.queue.add(*entry) else { return };
            let cost = cost(&entry);
            self.state = Stage::Waiting(entry);
            self.queue.wait_for_capacity(cost).await;
        }
    }

    fn entry(&self, status: Option<StatusCode>, code: Option<ErrorCode>) -> NewAuditEntry {
        let context = self.context.facts();
        let route = self.route.as_ref().map(MatchedPath::as_str);
        let action = route.and_then(|route| self.actions.id(route, &self.method)).unwrap_or(UNMATCHED_ACTION);
        let request_id = self.request_id.as_ref().map_or("", RequestId::as_str);
        let entry = AuditEntry {
            at: self.at,
            key: context.key,
            address: self.address,
            action: action.to_owned(),
            resource: context.resource,
            egress: context.egress,
            outcome: Outcome { status: status.map(|status| status.as_u16()), code },
            request_id: request_id.to_owned(),
        };
        NewAuditEntry { id: AuditId::generate(), account: context.account, entry }
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        let entry = match mem::replace(&mut self.state, Stage::Done) {
            Stage::InProgress if self.is_write => self.entry(None, None),
            Stage::Waiting(entry) => *entry,
            Stage::InProgress | Stage::Done => return,
        };
        // `drop` cannot wait for capacity.
        if let Err(entry) = self.queue.add(entry) {
            log(&entry);
        }
    }
}

fn error_code(response: &Response) -> Option<ErrorCode> {
    let header = response.headers().get(SKEP_ERROR)?.to_str().ok()?;
    ErrorCode::ALL.iter().copied().find(|code| code.as_str() == header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_parameters_that_are_no_ids_are_left_out() {
        for good in ["4242", "vm_01jv0000000000000000000000", "key_x", "exec_7"] {
            assert!(is_id(good), "{good}");
        }
        let key = format!("sk-skep-prod-{}", "0".repeat(64));
        for wrong in ["", "ada@example.com", "a b", "../x", "sk-skep-prod-1", &key, &"a".repeat(65), "ü"] {
            assert!(!is_id(wrong), "{wrong}");
        }
    }
}
