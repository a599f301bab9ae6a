//! `/api/tickets`.

mod change;
mod claim;
mod create;
mod list;
mod log;
mod read;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{ETAG, IF_MATCH},
};
use jiff::Timestamp;
use serde::Serialize;
use skep_api::{ErrorCode, Failure, TicketId, tickets::Ticket};
use skep_store::{Answered, Store, TicketCall};
use tokio::sync::watch;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    auth::Identity,
    extract::RequestInfo,
    json::Json,
    tickets::{InProgressRequests, Waiters},
};

/// Marks the repeated answer of an earlier request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

#[derive(Clone)]
pub(crate) struct TicketsState {
    pub store: Arc<dyn Store>,
    /// Wakes claims that wait for a ready ticket.
    pub waiters: Waiters,
    /// The requests with an idempotency key that are in progress.
    pub in_progress: InProgressRequests,
    /// True when the server shuts down.
    pub stopping: watch::Receiver<bool>,
}

pub(crate) fn routes(state: TicketsState) -> Routes {
    vec![
        routes!(list::list, create::create).with_state(state.clone()),
        routes!(list::totals).with_state(state.clone()),
        routes!(create::create_batch).with_state(state.clone()),
        routes!(claim::claim).with_state(state.clone()),
        routes!(read::read, change::change, change::delete).with_state(state.clone()),
        routes!(claim::beat).with_state(state.clone()),
        routes!(read::why).with_state(state.clone()),
        routes!(read::history).with_state(state.clone()),
        routes!(log::log).with_state(state),
    ]
}

/// A ticket's record with its version as `ETag`.
struct Versioned(Ticket);

impl IntoResponse for Versioned {
    fn into_response(self) -> Response {
        let tag = HeaderValue::from_str(&format!("\"{}\"", self.0.version));
        let mut response = Json(self.0).into_response();
        if let Ok(tag) = tag {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

/// The response of a request with an idempotency key, marked if it is a repetition.
pub(super) fn replayable_response<T: Serialize>(
    status: StatusCode,
    answered: Answered<T>,
    respond: impl FnOnce(T) -> Response,
) -> Response {
    let mut response = respond(answered.answer);
    *response.status_mut() = status;
    if answered.replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

fn ticket_call(caller: &Identity, call: &RequestInfo) -> TicketCall {
    TicketCall {
        account: caller.account.id,
        key: Some(caller.key.id),
        vm: caller.key.vm,
        at: Timestamp::now(),
        request_id: Some(call.id.as_str().to_owned()),
    }
}

/// A malformed id gets the same error as an unknown ticket.
fn ticket_id(text: &str) -> Result<TicketId, skep_store::Error> {
    text.parse().map_err(|_| skep_store::Error::UnknownTicket { id: text.to_owned() })
}

/// The versions that `If-Match` names. `None`: any version.
fn expected_versions(headers: &HeaderMap) -> Result<Option<Vec<u64>>, Failure> {
    let mut versions = None;
    for value in headers.get_all(IF_MATCH) {
        let malformed = || {
            let message = "`If-Match` is not a list of entity tags; give the `ETag` of an answer, such as `\"3\"`, or `*`";
            Failure::new(ErrorCode::MalformedRequest, message)
        };
        let text = value.to_str().map_err(|_| malformed())?.trim();
        if text == "*" {
            return Ok(None);
        }
        let versions = versions.get_or_insert_with(Vec::new);
        for tag in text.split(',').map(str::trim) {
            // A weak tag never matches here (RFC 9110, section 13.1.1).
            let (weak, tag) = tag.strip_prefix("W/").map_or((false, tag), |tag| (true, tag));
            let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).ok_or_else(malformed)?;
            versions.extend(inner.parse::<u64>().ok().filter(|_| !weak));
        }
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<Vec<u64>>, ErrorCode> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, HeaderValue::from_str(value).unwrap());
        }
        expected_versions(&headers).map_err(|failure| failure.code)
    }

    #[test]
    fn if_match_names_versions() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["*"]), Ok(None));
        assert_eq!(read(&["\"3\""]), Ok(Some(vec![3])));
        assert_eq!(read(&["\"3\", \"4\"", "\"5\""]), Ok(Some(vec![3, 4, 5])));
        assert_eq!(read(&["W/\"3\", \"x\""]), Ok(Some(vec![])), "nothing holds");
        for wrong in ["3", "", "\"3", "\"3\" \"4\","] {
            assert_eq!(read(&[wrong]), Err(ErrorCode::MalformedRequest), "{wrong}");
        }
    }
}
