//! `/api/tickets`: a file for each thing that is done with them.

mod change;
mod claim;
mod create;
mod list;
mod log;
mod look;

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
    extract::Call,
    json::Json,
    tickets::{UnderWay, Waiters},
};

/// Says that an answer was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What these routes use.
#[derive(Clone)]
pub(crate) struct TicketDesk {
    /// Where tickets are kept.
    pub store: Arc<dyn Store>,
    /// Those who wait for work.
    pub waiters: Waiters,
    /// The named requests that are under way.
    pub under_way: UnderWay,
    /// True when the server shall end.
    pub stopping: watch::Receiver<bool>,
}

/// The routes of this folder.
pub(crate) fn routes(desk: TicketDesk) -> Routes {
    vec![
        routes!(list::list, create::create).with_state(desk.clone()),
        routes!(create::create_batch).with_state(desk.clone()),
        routes!(claim::claim).with_state(desk.clone()),
        routes!(look::read, change::change, change::delete).with_state(desk.clone()),
        routes!(claim::beat).with_state(desk.clone()),
        routes!(look::why).with_state(desk.clone()),
        routes!(look::history).with_state(desk.clone()),
        routes!(log::log).with_state(desk),
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

/// An answer that may be a repetition.
pub(super) fn answered<T: Serialize>(
    status: StatusCode,
    answered: Answered<T>,
    shown: impl FnOnce(T) -> Response,
) -> Response {
    let mut response = shown(answered.answer);
    *response.status_mut() = status;
    if answered.replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Who acts, and when.
fn call_of(caller: &Identity, call: &Call) -> TicketCall {
    TicketCall {
        account: caller.account.id,
        key: Some(caller.key.id),
        vm: caller.key.vm,
        at: Timestamp::now(),
        request_id: Some(call.id.as_str().to_owned()),
    }
}

/// A text that is no id names no ticket: the store's own words for that.
fn ticket_id(text: &str) -> Result<TicketId, skep_store::Error> {
    text.parse().map_err(|_| skep_store::Error::UnknownTicket { id: text.to_owned() })
}

/// The versions that `If-Match` names; `None` where every one will do.
fn expected(headers: &HeaderMap) -> Result<Option<Vec<u64>>, Failure> {
    let mut versions = None;
    for value in headers.get_all(IF_MATCH) {
        let malformed = || {
            let message =
                "`If-Match` is no list of entity tags; give the `ETag` of an answer, such as `\"3\"`, or `*`";
            Failure::new(ErrorCode::MalformedRequest, message)
        };
        let text = value.to_str().map_err(|_| malformed())?.trim();
        if text == "*" {
            return Ok(None);
        }
        let versions = versions.get_or_insert_with(Vec::new);
        for tag in text.split(',').map(str::trim) {
            // A weak tag never holds here, as the standard says.
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
        expected(&headers).map_err(|failure| failure.code)
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
