//! Routes requests to the handler.

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderName, Method, Request, Response, StatusCode, Uri, request::Parts};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::{Serialize, de::DeserializeOwned};
use skep_api::{ErrorCode, Failure};

use super::{Events, Handler};
use crate::{
    PROTOCOL,
    account_roots::ACCOUNT_ROOTS_HEADER,
    head,
    protocol::{PROTOCOL_PATH, ProtocolReport},
    wire,
};

/// The header that carries the id of a call.
const CALL: HeaderName = HeaderName::from_static("skep-call");

type Answer = Response<head::BodyStream>;

pub(super) async fn answer<H: Handler>(handler: H, request: Request<Incoming>) -> Answer {
    match route(handler, request).await {
        Ok(answer) => answer,
        Err(failure) => {
            // A failure consists of two strings, so serialising it cannot fail.
            let body = serde_json::to_vec(&failure).unwrap_or_default();
            respond(StatusCode::BAD_REQUEST, full_body(body))
        }
    }
}

async fn route<H: Handler>(handler: H, request: Request<Incoming>) -> Result<Answer, Failure> {
    let (head, body) = request.into_parts();
    // Before anything else of the request is read: a host of any release must get this answer.
    if (&head.method, head.uri.path()) == (&Method::GET, PROTOCOL_PATH) {
        return json(&ProtocolReport { protocol: PROTOCOL });
    }
    match head.headers.get(ACCOUNT_ROOTS_HEADER) {
        Some(account_roots) => {
            handle(handler.for_account(parse(account_roots.as_bytes())?)?, head, body).await
        }
        None => handle(handler, head, body).await,
    }
}

async fn handle<H: Handler>(handler: H, head: Parts, body: Incoming) -> Result<Answer, Failure> {
    let limit = handler.request_limit();
    let path: Vec<&str> = head.uri.path().trim_start_matches('/').split('/').collect();
    match (&head.method, path.as_slice()) {
        (&Method::POST, ["identity"]) => json(&handler.set_identity(read_json(body, limit).await?).await?),
        (&Method::POST, ["hand-out"]) => json(&handler.hand_out(read_json(body, limit).await?).await?),
        (&Method::POST, ["clock"]) => json(&handler.set_clock(read_json(body, limit).await?).await?),
        (&Method::POST, ["freeze"]) => json(&handler.freeze(read_json(body, limit).await?).await?),
        (&Method::POST, ["thaw"]) => empty(handler.thaw(read_json(body, limit).await?).await),
        (&Method::POST, ["rest"]) => empty(handler.rest().await),
        (&Method::POST, ["settle"]) => empty(handler.settle().await),
        (&Method::GET, ["usage"]) => json(&handler.usage()?),
        (&Method::POST, ["operations", name]) => {
            let call = head.headers.get(CALL).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let request = read(body, limit).await?;
            handler.until_thawed().await;
            let answer = handler.run(call, name, request).await?;
            Ok(respond(StatusCode::OK, full_body(answer)))
        }
        (&Method::POST, ["streams", name]) => streamed(&handler, name, body, limit).await,
        (&Method::PUT, ["commands", id]) => {
            let command = read_json(body, limit).await?;
            handler.until_thawed().await;
            Ok(stream(handler.start(id, command)?))
        }
        (&Method::GET, ["commands", id]) => {
            let events = handler.attach(id, offset(&head.uri, "stdout")?, offset(&head.uri, "stderr")?)?;
            Ok(stream(events))
        }
        (&Method::DELETE, ["commands", id]) => empty(handler.cancel(id)),
        (method, _) => {
            let message = format!("the agent has no route {method} {}", head.uri.path());
            Err(Failure::new(ErrorCode::UnknownRoute, message))
        }
    }
}

async fn streamed<H: Handler>(
    handler: &H,
    name: &str,
    body: Incoming,
    limit: usize,
) -> Result<Answer, Failure> {
    let malformed =
        |error| Failure::new(ErrorCode::MalformedBody, format!("the request has no head: {error}"));
    let (request, content) = head::split(body, limit).await.map_err(malformed)?;
    handler.until_thawed().await;
    let (answer, content) = handler.run_streamed(name, request, content).await?;
    Ok(respond(StatusCode::OK, head::join(&answer, content)))
}

/// Reads a body of at most `limit` bytes.
async fn read(mut body: Incoming, limit: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let broken =
            |error| Failure::new(ErrorCode::MalformedBody, format!("the request was cut short: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            let message = format!("the request is longer than {limit} bytes, the limit for this VM's memory");
            return Err(Failure::new(ErrorCode::BodyTooLarge, message));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

async fn read_json<T: DeserializeOwned>(body: Incoming, limit: usize) -> Result<T, Failure> {
    parse(&read(body, limit).await?)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let malformed =
        |error| Failure::new(ErrorCode::MalformedBody, format!("the request is malformed: {error}"));
    serde_json::from_slice(body).map_err(malformed)
}

/// An offset from the query; 0 if it is missing.
fn offset(uri: &Uri, name: &str) -> Result<u64, Failure> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let Some((_, text)) = pairs.into_iter().find(|(key, _)| *key == name) else { return Ok(0) };
    let malformed =
        |_| Failure::new(ErrorCode::InvalidValue, format!("the offset `{text}` of {name} is not a number"));
    text.parse().map_err(malformed)
}

fn json<T: Serialize>(value: &T) -> Result<Answer, Failure> {
    let body = serde_json::to_vec(value).map_err(|error| {
        Failure::new(ErrorCode::Internal, format!("the answer cannot be serialised: {error}"))
    })?;
    Ok(respond(StatusCode::OK, full_body(body)))
}

/// The answer to a request whose success is all that there is to report.
fn empty(result: Result<(), Failure>) -> Result<Answer, Failure> {
    json(&result.map(|()| serde_json::Map::new())?)
}

fn stream(events: Events) -> Answer {
    // Serialising an exit cannot fail; if it did, the stream would end without an exit.
    let frames = events.filter_map(|(offset, event)| {
        let frame = wire::encode(offset, &event).ok().map(|bytes| Ok(Frame::data(bytes)));
        std::future::ready(frame)
    });
    respond(StatusCode::OK, StreamBody::new(frames).boxed_unsync())
}

/// A body that is completely in memory.
fn full_body(bytes: impl Into<Bytes>) -> head::BodyStream {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn respond(status: StatusCode, body: head::BodyStream) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}
